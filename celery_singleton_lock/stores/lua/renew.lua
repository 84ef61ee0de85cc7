-- Resets the expiry of a held lock to its ttl, never to an earlier time. On a quorum's node that lost its memory it
-- restores the lock.
-- KEYS[1] lock      string "<h or r>:<token>:<fence>:<holder>"
-- KEYS[2] fence     string the last fencing token, decimal
-- KEYS[3] tombstone string exists where this token may not take anything any more
-- KEYS[4] index     zset   this bucket's locks by the server's time (ms) of their end
-- ARGV 1 token, 2 ttl (ms), 3 fence ttl (ms), 4 resource, 5 fence, 6 holder ("": a vanished lock is not restored),
--      7 "1" where the expiry may become an earlier one, too: an extension, not a renewal
-- Answers 1 where the token holds the lock, else 0
local mine = "h:" .. ARGV[1] .. ":"
local ttl = tonumber(ARGV[2])
if redis.call("GETRANGE", KEYS[1], 0, #mine - 1) == mine then
  -- A renewal may come after an extension that was asked for later: it must not undo it.
  if ARGV[7] ~= "1" then ttl = math.max(ttl, redis.call("PTTL", KEYS[1])) end
  redis.call("PEXPIRE", KEYS[1], ttl)
  redis.call("PEXPIRE", KEYS[2], ARGV[3])
else
  local got = redis.call("MGET", KEYS[1], KEYS[2], KEYS[3])
  if ARGV[6] == "" or got[1] or got[3] or (tonumber(got[2] or 0) or 0) > tonumber(ARGV[5]) then return 0 end
  redis.call("SET", KEYS[1], mine .. ARGV[5] .. ":" .. ARGV[6], "PX", ttl)
  redis.call("SET", KEYS[2], ARGV[5], "PX", ARGV[3])
end
local time = redis.call("TIME")
redis.call("ZADD", KEYS[4], time[1] * 1000 + math.floor(time[2] / 1000) + ttl, ARGV[4])
if redis.call("PTTL", KEYS[4]) < ttl then redis.call("PEXPIRE", KEYS[4], ttl) end
return 1
