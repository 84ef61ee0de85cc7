-- Takes a lock and hands out its fencing token, or says why not. Asked again by the token that holds, it renews.
-- KEYS[1] lock     string  "<h(eld) or r(esting)>:<token>:<fence>:<holder as JSON>", always with an expiry
-- KEYS[2] fence    string  the last fencing token, decimal
-- KEYS[3] index    zset    this bucket's locks by the server's time (ms) of their end
-- KEYS[4] refused  string  exists where this token may not take anything any more
-- KEYS[5] record   string  "<rank>:<body>"; absent where no record is asked for
-- ARGV 1 token, 2 holder, 3 ttl (ms), 4 fence ttl (ms), 5 resource, 6 task id as JSON, 7 rank
-- Answers {"granted", fence} | {"taken", lock, ms left} | {"recorded", body}
local lock = redis.call("GET", KEYS[1])
local state, token, fence, holder
if lock then
  state, token, fence, holder = string.match(lock, "^([hr]):(%x+):(%d+):(.*)$")
end
local mine = state == "h" and token == ARGV[1]
if not mine then
  local record = KEYS[5] and redis.call("GET", KEYS[5])
  if record then
    local rank, body = string.match(record, "^(%d+):(.*)$")
    if rank and tonumber(rank) >= tonumber(ARGV[7]) then return {"recorded", body} end
  end
  -- A resting resource is taken over by the task that rests it: its next attempt need not wait for itself.
  local own = state == "r" and ARGV[6] ~= "null" and string.sub(holder, 2, #ARGV[6] + 1) == ARGV[6]
  if (lock and not own) or redis.call("EXISTS", KEYS[4]) == 1 then
    return {"taken", lock or "", redis.call("PTTL", KEYS[1])}
  end
end
local time = redis.call("TIME")
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if mine then
  redis.call("PEXPIRE", KEYS[1], ARGV[3])
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
else
  local last = tonumber(redis.call("GET", KEYS[2]) or 0)
  -- Not tostring(): it would print a time in microseconds with 14 digits, and cut the rest.
  fence = string.format("%.0f", math.max(last + 1, time[1] * 1000000 + time[2]))
  redis.call("SET", KEYS[1], "h:" .. ARGV[1] .. ":" .. fence .. ":" .. ARGV[2], "PX", ARGV[3])
  redis.call("SET", KEYS[2], fence, "PX", ARGV[4])
  redis.call("ZREMRANGEBYSCORE", KEYS[3], "-inf", ms)
end
redis.call("ZADD", KEYS[3], ms + ARGV[3], ARGV[5])
if redis.call("PTTL", KEYS[3]) < tonumber(ARGV[3]) then redis.call("PEXPIRE", KEYS[3], ARGV[3]) end
return {"granted", fence}
