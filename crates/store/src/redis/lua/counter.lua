-- Reads one counter, and clears it on request, with no hit in between.
--
-- KEYS     the counter, of a sliding window the one before, and the set of its open holds
-- ARGV     1 and one check, see charge.lua; 'read', 'show', 'clear', or 'holds' to let nothing be given back of what was
--          charged before; and behind the last two the slot of the time of the reset
-- Returns  TIME's seconds and microseconds; 1, or -1 if the check is stale, or -2 if the counter holds
--          no count; what is used and what remains; the reset in milliseconds; what open holds hold, and
--          their number; 1 if it is closed, else 0; with 'show' what a log remembers, each as in its key

-- The most entries of one counter that are shown.
local SHOWN_MAX = 500

local charges, at = parse(1)
local charge = charges[1]
local algorithm = charge.algorithm
local reply = { tonumber(time[1]), tonumber(time[2]), 1, 0, 0, 0, 0, 0, 0 }
charge.is_shown = true
local account, hold = algorithm.read(charge), charge.hold
charge.account = account
if hold then hold.known = read_hold(charge, {}) end
if is_stale(charge) then
  reply[3] = -1
elseif not account or hold and not hold.known then
  reply[3] = -2
else
  -- Nothing of it is written.
  if hold then expire(charge) end
  reply[7] = hold and held(charge) or 0
  reply[8] = hold and hold.is_open and count_calls(hold.known) or algorithm.finish and algorithm.used(account, charge) or 0
  reply[4] = algorithm.used(account, charge)
  reply[5] = math.max(0, algorithm.remaining(account, charge) - reply[7])
  reply[6] = math.max(0, algorithm.ends(account, charge) - now)
  local closed = hold and closed_until(charge)
  if closed then reply[5], reply[6], reply[9] = 0, closed - now, 1 end
  if algorithm.entries and ARGV[at] == 'show' then
    for _, entry in ipairs(algorithm.entries(account, SHOWN_MAX)) do reply[#reply + 1] = entry end
  end
end
-- What holds no count is cleared too.
local clear = ARGV[at]
if reply[3] ~= -1 and (clear == 'clear' or clear == 'holds') then
  local record = tonumber(ARGV[at + 1])
  -- As long as a hold may be open. While its slot moves, a key that is deleted here cannot be set again.
  redis.call('SET', KEYS[record], text(now), 'PXAT', text(now + 604800000))
  for slot, key in ipairs(KEYS) do
    if clear == 'clear' and slot ~= record then redis.call('DEL', key) end
  end
end
return reply
