-- Charges, as they are written in the arguments: twelve for each.
--   algorithm  its short name
--   key        slot in KEYS
--   start      first millisecond of the window, of a 'give_back' the one that its hits were charged in, and
--   stop       first after it; of one that the clock does not align, 0 and its length
--   kind       'charge', 'check', 'refund', or 'give_back' for what a reservation charged: a call of its own
--   hits       0 to 2^53 - 1; of a 'check' those that must fit, which are not charged
--   limit      0 to 2^53 - 1
--   denied     what it costs if the call is denied: 'free', or 'count' for all its hits
--   mode       'enforced', 'shadow' or 'quota'
--   failure_mode  the answer if the counter is corrupt: 'error', 'deny', 'allow' or 'local'
--   expiry     of an aligned key, in Unix milliseconds, not before the window's end; of a 'give_back', which
--              creates no key, the time at which its hits were charged
--   extra      'sw': the slot in KEYS of the previous window, empty if there is none; 'tb': the burst;
--              'fh': the idle time in milliseconds, empty if there is none; 'sl': the caller
local ARGUMENTS = 12

-- The charges from `at` on, which holds their number; and the place behind them.
local function parse(at)
  local charges, count = {}, tonumber(ARGV[at])
  assert(ARGV[at + ARGUMENTS * count], 'twelve arguments for each charge')
  for i = 1, count do
    local base = at + ARGUMENTS * (i - 1)
    local start, stop, extra = tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4]), ARGV[base + 12]
    charges[i] = {
      algorithm = ALGORITHMS[ARGV[base + 1]],
      key = KEYS[tonumber(ARGV[base + 2])],
      start = start,
      stop = stop,
      window = stop - start,
      kind = ARGV[base + 5],
      hits = tonumber(ARGV[base + 6]),
      limit = tonumber(ARGV[base + 7]),
      counted = ARGV[base + 8] == 'count',
      mode = ARGV[base + 9],
      failure_mode = ARGV[base + 10],
      expiry = ARGV[base + 11],
      made = tonumber(ARGV[base + 11]),
      previous = ARGV[base + 1] == 'sw' and extra ~= '' and KEYS[tonumber(extra)],
      burst = tonumber(extra),
      idle = tonumber(extra),
      caller = extra,
    }
  end
  return charges, at + ARGUMENTS * count + 1
end

-- Whether it is compared with its limit.
local function is_judged(charge)
  return charge.kind == 'charge' or charge.kind == 'check'
end

local function is_stale(charge)
  return charge.algorithm.aligned and charge.kind ~= 'give_back' and (now < charge.start or now >= charge.stop)
end
