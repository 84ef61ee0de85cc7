-- Leaves one server's mark for a moment, and says which servers' marks are here: of several, only its own should be.
-- KEYS[1..n]  string  the mark of each server
-- ARGV 1 which is this server's, 2 ttl (ms)
-- Answers for each of KEYS 1 where it is here, else 0
redis.call("SET", KEYS[tonumber(ARGV[1])], "", "PX", ARGV[2])
local found = redis.call("MGET", unpack(KEYS))
for place = 1, #KEYS do found[place] = found[place] and 1 or 0 end
return found
