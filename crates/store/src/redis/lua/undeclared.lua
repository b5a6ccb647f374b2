-- The keys are in many slots of one server of a cluster, which refuses them as declared keys. They follow the
-- other arguments, and their number follows them. No command names two of them: on keys of two slots, it
-- would make Valkey 9.1 refuse every later script.
local last_argument = #ARGV - ARGV[#ARGV] - 1
local KEYS = {}
for i = last_argument + 1, #ARGV - 1 do KEYS[#KEYS + 1] = ARGV[i] end

-- By their slots in KEYS: which of the first `count` keys do not exist, and which another server has, since their slot
-- has moved or is being moved; nil if there are none, which is the usual case.
local function survey(count)
  local try, absent, elsewhere = redis.pcall, nil, nil
  for slot = 1, count do
    local found = try('EXISTS', KEYS[slot])
    if found == 0 then
      absent = absent or {}
      absent[slot] = true
    elseif found ~= 1 then
      elsewhere = elsewhere or {}
      elsewhere[slot] = true
    end
  end
  return absent, elsewhere
end

-- Whether a counter without hits is removed. A later call of the run that cannot create it again, since its slot is
-- being moved, is decided elsewhere.
local REMOVES = true

-- Whether another server of the cluster has the key.
local function is_elsewhere(key) return type(redis.pcall('EXISTS', key)) ~= 'number' end

