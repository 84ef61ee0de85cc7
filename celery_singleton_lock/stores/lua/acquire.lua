-- Takes a lock and hands out its fencing token, or says why not. Asked again by the token that holds, it renews.
-- KEYS[1] lock      string "<h(eld) or r(esting)>:<token>:<fence>:<holder>", always with an expiry
-- KEYS[2] fence     string the last fencing token, decimal
-- KEYS[3] tombstone string exists where this token may not take anything any more
-- KEYS[4] index     zset   this bucket's locks by the server's time (ms) of their end
-- KEYS[5] record    string "<attempt>:<fence>:<body>"; absent where no record is asked for
-- ARGV 1 token, 2 holder (JSON, its task id first), 3 ttl (ms), 4 fence ttl (ms), 5 resource, 6 attempt,
--      7 the least fence: the client's proposal, or 0 for the server's time (us)
-- Answers the fence, where it is granted | {"taken", lock, ms left} | {"recorded", record, ms left}
local got = redis.call("MGET", KEYS[1], KEYS[2], KEYS[3], KEYS[5] or KEYS[1])
local lock, tombstone, record = got[1], got[3], KEYS[5] and got[4]
local last = got[2] and tonumber(string.match(got[2], "^%d+$")) or 0
local state, token, fence, holder
if lock then state, token, fence, holder = string.match(lock, "^([hr]):(%x+):(%d+):(.*)$") end
local mine = state == "h" and token == ARGV[1]
if not mine then
  local attempt = record and string.match(record, "^(%d+):%d+:")
  if attempt and tonumber(attempt) >= tonumber(ARGV[6]) then return {"recorded", record, redis.call("PTTL", KEYS[5])} end
  local own = false -- a resting resource is taken over by its own task: its next attempt need not wait for itself
  if state == "r" then
    local read, theirs = pcall(cjson.decode, holder)
    local task_id = cjson.decode(ARGV[2])[1]
    own = task_id ~= cjson.null and read and type(theirs) == "table" and task_id == theirs[1]
  end
  if (lock and not own) or tombstone then return {"taken", lock or "", redis.call("PTTL", KEYS[1])} end
end
local time = redis.call("TIME")
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local least = tonumber(ARGV[7])
if mine then
  least = math.max(least, fence) -- the same fence again, or the one that a quorum's second round agrees on
else
  if least == 0 then least = time[1] * 1000000 + time[2] end
  least = math.max(last + 1, least)
end
fence = string.format("%.0f", least) -- not tostring(): it cuts a time in microseconds to 14 digits
local value = "h:" .. ARGV[1] .. ":" .. fence .. ":" .. ARGV[2]
if not redis.call("SET", KEYS[1], value, "PX", ARGV[3], lock and "XX" or "NX") then -- a key of another type is there
  return {"taken", "", redis.call("PTTL", KEYS[1])}
end
redis.call("SET", KEYS[2], string.format("%.0f", math.max(last, least)), "PX", ARGV[4])
redis.call("ZADD", KEYS[4], ms + ARGV[3], ARGV[5])
if time[2] % 16 == 0 then -- a sweep, now and then; not before the SET, which a full server then lets through
  redis.call("ZREMRANGEBYSCORE", KEYS[4], "-inf", ms)
end
if redis.call("PTTL", KEYS[4]) < tonumber(ARGV[3]) then redis.call("PEXPIRE", KEYS[4], ARGV[3]) end
return fence
