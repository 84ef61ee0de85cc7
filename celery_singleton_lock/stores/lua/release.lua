-- Writes the record, then frees the lock or lets it rest; only by the token that holds it. Also the undo of an acquire.
-- KEYS[1] lock     string  "<h or r>:<token>:<fence>:<holder>"
-- KEYS[2] fence    string  the last fencing token, decimal
-- KEYS[3] index    zset    this bucket's locks by the server's time (ms) of their end
-- KEYS[4] refused  string  set where the token must take nothing any more
-- KEYS[5] record   string  "<rank>:<body>"; absent where none is written
-- ARGV 1 token, 2 fence, 3 rest (ms), 4 refusal (ms, 0 for none), 5 resource, 6 rank, 7 body, 8 record ttl (ms)
-- Answers 1 where the token held the lock, else 0
local last = tonumber(redis.call("GET", KEYS[2]) or 0)
if KEYS[5] and last <= tonumber(ARGV[2]) then -- a newer owner's record stands
  redis.call("SET", KEYS[5], ARGV[6] .. ":" .. ARGV[7], "PX", ARGV[8])
end
if tonumber(ARGV[4]) > 0 then redis.call("SET", KEYS[4], "", "PX", ARGV[4]) end
local lock = redis.call("GET", KEYS[1])
if not lock or string.sub(lock, 3, #ARGV[1] + 2) ~= ARGV[1] then return 0 end
local rest = tonumber(ARGV[3])
if rest > 0 then
  redis.call("SET", KEYS[1], "r" .. string.sub(lock, 2), "PX", rest)
  local time = redis.call("TIME")
  redis.call("ZADD", KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000) + rest, ARGV[5])
else
  redis.call("DEL", KEYS[1])
  redis.call("ZREM", KEYS[3], ARGV[5])
end
return 1
