-- Sets the expiry of a held lock to its ttl again; creates nothing.
-- KEYS[1] lock   string  "<h or r>:<token>:<fence>:<holder>"
-- KEYS[2] fence  string  the last fencing token
-- KEYS[3] index  zset    this bucket's locks by the server's time (ms) of their end
-- ARGV 1 token, 2 ttl (ms), 3 fence ttl (ms), 4 resource
-- Answers 1 where the token holds the lock, else 0
local mine = "h:" .. ARGV[1] .. ":"
if redis.call("GETRANGE", KEYS[1], 0, #mine - 1) ~= mine then return 0 end
redis.call("PEXPIRE", KEYS[1], ARGV[2])
redis.call("PEXPIRE", KEYS[2], ARGV[3])
local time = redis.call("TIME")
redis.call("ZADD", KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ARGV[4])
if redis.call("PTTL", KEYS[3]) < tonumber(ARGV[2]) then redis.call("PEXPIRE", KEYS[3], ARGV[2]) end
return 1
