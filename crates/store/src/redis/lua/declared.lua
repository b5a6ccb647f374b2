-- The keys are declared, in KEYS: any on a single server, keys of one slot on a cluster. A server that does not
-- have them refuses the whole run.

local last_argument = #ARGV

-- By their slots in KEYS: which of the first `count` keys do not exist; nil if all exist, which is the usual case.
local function survey(count)
  if redis.call('EXISTS', unpack(KEYS, 1, count)) == count then return nil end
  local absent = {}
  for slot = 1, count do absent[slot] = redis.call('EXISTS', KEYS[slot]) == 0 end
  return absent
end

-- Whether a counter without hits is removed. A later call of the run that could not create it again, since its slot
-- is being moved, would fail them all.
local REMOVES = false

-- Whether another server of the cluster has the key.
local function is_elsewhere() return false end

