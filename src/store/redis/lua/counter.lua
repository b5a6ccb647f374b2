-- Reads one counter, and clears it on request, with no hit in between.
--
-- KEYS     the counter, and of a sliding window the one before
-- ARGV     1 and one check, see charge.lua; 'show' or 'clear'
-- Returns  TIME's seconds and microseconds; 1, or -1 if the check is stale, or -2 if the counter holds
--          no count; what is used and what remains; the reset in milliseconds; and what a log remembers,
--          each as in its key

local charges, at = parse(1)
local charge = charges[1]
local algorithm = charge.algorithm
local reply = { tonumber(time[1]), tonumber(time[2]), 1, 0, 0, 0 }
local account = algorithm.read(charge)
if is_stale(charge) then
  reply[3] = -1
elseif not account then
  reply[3] = -2
else
  reply[4] = algorithm.used(account, charge)
  reply[5] = math.max(0, algorithm.remaining(account, charge))
  reply[6] = math.max(0, algorithm.ends(account, charge) - now)
  if algorithm.entries then
    for _, entry in ipairs(algorithm.entries(account)) do reply[#reply + 1] = entry end
  end
end
-- What holds no count is cleared too.
if reply[3] ~= -1 and ARGV[at] == 'clear' then redis.call('DEL', unpack(KEYS)) end
return reply
