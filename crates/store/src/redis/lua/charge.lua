-- Charges, as they are written in the arguments: twelve for each.
--   algorithm  its short name
--   key        slot in KEYS
--   start      first millisecond of the window, of a 'give_back' the one that its hits were charged in, and
--   stop       first after it; of one that the clock does not align, 0 and its length
--   kind       'charge', 'check', 'refund', or 'give_back' for what a reservation charged: a call of its own; with a
--              '+' behind it if the charge acts on a hold
--   hits       0 to 2^53 - 1; of a 'check' those that must fit, which are not charged
--   limit      0 to 2^53 - 1
--   denied     what it costs if the call is denied: 'free', or 'count' for all its hits; 'hold' for an estimate, which
--              costs nothing even in 'quota' unless it fits; 'part' if as many of the hits are charged as fit, to each part
--              of the call as many, and none if it is denied
--   mode       'enforced', 'shadow' or 'quota'; behind a quota or its shadow '!' if its group is charged once, '+' if
--              it has room whatever its counter holds, and the number of its group, if that has several
--   failure_mode  the answer if the counter is corrupt: 'error', 'deny', 'allow' or 'local'
--   expiry     of an aligned key, in Unix milliseconds, not before the window's end; of a 'give_back', which
--              creates no key, the time at which its hits were charged
--   extra      'sw': the slot in KEYS of the previous window, or empty; 'tb': the burst;
--              'fh': the idle time in milliseconds, or empty; 'sl': the caller
-- A charge that acts on a hold has further ones:
--   action     a name in HOLD_NUMBERS
--   key        slot in KEYS of the hold's record, of the set of open holds, or of what closes the counter; empty if the
--              counter itself has it
--   id         identifies the hold; empty for 'end_oldest', 'beside' and 'ban'
--   numbers    of the action, or empty: hits, and times in milliseconds; `keep` is 1 if abandoned holds stay charged,
--              `is_end` if the call states what was used, and so takes nothing; slots in KEYS: `take` of the key that
--              names all holds of the call, `reset` of the time at which the counter was reset
local ARGUMENTS = 12
local WITH_HOLD = { ['charge+'] = 'charge', ['check+'] = 'check', ['refund+'] = 'refund', ['give_back+'] = 'give_back' }
local HOLD_NUMBERS = {
  commit = { 'held', 'used', 'made', 'deadline', 'reset' },
  by_id = { 'lifetime', 'used', 'is_end', 'reset' },
  open = { 'keep', 'lifetime', 'estimate', 'take' },
  end_oldest = { 'keep' },
  beside = { 'keep' },
  occupy = { 'lifetime' },
  ban = { 'lifetime' },
}

-- The hold whose arguments follow `base`; and the place of the last one.
local function parse_hold(base)
  local action = ARGV[base + 1]
  local hold, numbers = { action = action, key = KEYS[tonumber(ARGV[base + 2])], id = ARGV[base + 3] }, HOLD_NUMBERS[action]
  for i, name in ipairs(numbers) do hold[name] = tonumber(ARGV[base + 3 + i]) end
  hold.is_open, hold.take = numbers[1] == 'keep', KEYS[hold.take]
  hold.reset = KEYS[hold.reset]
  return hold, base + 3 + #numbers
end

-- The charges from `at` on, which holds their number; and the place behind them.
local function parse(at)
  local charges, base = {}, at
  for i = 1, tonumber(ARGV[at]) do
    assert(ARGV[base + ARGUMENTS], 'twelve arguments for each charge')
    local kind = ARGV[base + 5]
    local with_hold = WITH_HOLD[kind]
    local start, stop, extra = tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4]), ARGV[base + 12]
    local mode, number, first, room, group = ARGV[base + 9], tonumber(extra), '', '', nil
    if mode ~= 'enforced' then mode, first, room, group = mode:match('^(%l+)(!?)(%+?)(%d*)$') end
    charges[i] = {
      algorithm = ALGORITHMS[ARGV[base + 1]],
      key = KEYS[tonumber(ARGV[base + 2])],
      start = start,
      stop = stop,
      window = stop - start,
      kind = with_hold or kind,
      hits = tonumber(ARGV[base + 6]),
      limit = tonumber(ARGV[base + 7]),
      counted = ARGV[base + 8] == 'count',
      estimated = ARGV[base + 8] == 'hold',
      is_part = ARGV[base + 8] == 'part',
      mode = mode,
      group = tonumber(group),
      draws_first = first ~= '',
      always_fits = room ~= '',
      failure_mode = ARGV[base + 10],
      expiry = ARGV[base + 11],
      made = tonumber(ARGV[base + 11]),
      previous = ARGV[base + 1] == 'sw' and KEYS[number],
      burst = number,
      idle = number,
      caller = extra,
    }
    base = base + ARGUMENTS
    if with_hold then charges[i].hold, base = parse_hold(base) end
  end
  return charges, base + 1
end

-- Whether it is compared with its limit.
local function is_judged(charge)
  return charge.kind == 'charge' or charge.kind == 'check'
end

-- Whether it takes hits back from the window that they were charged in, whichever that was.
local function acts_on_past_window(charge)
  local hold = charge.hold
  return charge.kind == 'give_back' or hold and hold.action == 'commit' and hold.used < hold.held
end

local function is_stale(charge)
  return charge.algorithm.aligned and (now < charge.start or now >= charge.stop) and not acts_on_past_window(charge)
end
