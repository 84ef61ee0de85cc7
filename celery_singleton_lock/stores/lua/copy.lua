-- Keeps a record that was found on another server of a quorum; a newer one stands.
-- KEYS[1] record  string  "<attempt>:<fence>:<body>", always with an expiry
-- ARGV 1 record, 2 its fence, 3 its ttl (ms)
-- Answers 1: a record of this fence or a newer one is here
local record = redis.call("GET", KEYS[1])
local fence = record and string.match(record, "^%d+:(%d+):")
if not fence or tonumber(fence) < tonumber(ARGV[2]) then redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[3]) end
return 1
