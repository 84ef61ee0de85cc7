-- Frees the lock or lets it rest, only by the token that holds it, and writes the record. Also the undo of an acquire.
-- KEYS[1] lock      string "<h or r>:<token>:<fence>:<holder>"
-- KEYS[2] fence     string the last fencing token, decimal
-- KEYS[3] tombstone string set where the token must take nothing any more
-- KEYS[4] index     zset   this bucket's locks by the server's time (ms) of their end
-- KEYS[5] record    string "<attempt>:<fence>:<body>"; absent where none is written
-- ARGV 1 token, 2 fence, 3 rest (ms), 4 tombstone ttl (ms, 0 for none), 5 resource,
--      6 fence ttl (ms) where the stored fence is raised past this one whoever holds the lock, else 0,
--      7 record, 8 record ttl (ms)
-- Answers 1 where the token held the lock, else 0
local got = redis.call("MGET", KEYS[1], KEYS[2])
local lock, last = got[1], (tonumber(got[2] or 0) or 0)
local mine = lock and string.sub(lock, 3, #ARGV[1] + 2) == ARGV[1]
-- The lock first: a full server refuses a SET, but not in a script that has begun with what frees memory.
if mine and ARGV[3] == "0" then
  redis.call("DEL", KEYS[1])
  redis.call("ZREM", KEYS[4], ARGV[5])
elseif mine then
  redis.call("PEXPIRE", KEYS[1], ARGV[3])
  redis.call("SET", KEYS[1], "r" .. string.sub(lock, 2), "PX", ARGV[3])
  local time = redis.call("TIME")
  redis.call("ZADD", KEYS[4], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[5])
  if redis.call("PTTL", KEYS[4]) < tonumber(ARGV[3]) then redis.call("PEXPIRE", KEYS[4], ARGV[3]) end
end
if KEYS[5] and (mine or last <= tonumber(ARGV[2])) then -- else a newer owner's record stands
  redis.call("SET", KEYS[5], ARGV[7], "PX", ARGV[8])
end
if ARGV[4] ~= "0" then redis.call("SET", KEYS[3], "", "PX", ARGV[4]) end
if ARGV[6] ~= "0" and last <= tonumber(ARGV[2]) then -- a renewal that comes after this must not restore the lock
  redis.call("SET", KEYS[2], string.format("%.0f", ARGV[2] + 1), "PX", ARGV[6])
end
return mine and 1 or 0
