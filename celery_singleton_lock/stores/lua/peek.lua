-- Says who holds a lock; changes nothing.
-- KEYS[1] lock  string  "<h or r>:<token>:<fence>:<holder as JSON>"
-- Answers {"taken", lock, ms left} or {"free"}
local lock = redis.call("GET", KEYS[1])
if not lock then return {"free"} end
return {"taken", lock, redis.call("PTTL", KEYS[1])}
