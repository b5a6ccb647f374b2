-- Decides calls on fixed-window counters. Each call is judged by itself, all or nothing, and a
-- call's trouble stays its own.
--
-- KEYS     the counters; a charge names one by its place in this list
-- ARGV     calls, one after the other. A call is the number of its charges, then for each charge:
--            key        place in KEYS
--            start      first second of the window
--            length     of the window, in seconds
--            expiry     when the key may go, in Unix milliseconds; not before the window's end
--            kind       'take', 'look' or 'give'
--            hits       0 to 2^53 - 1
--            limit      0 to 2^32 - 1
--            denied     what it costs if the call is denied: 'free', or 'count' for all its hits
-- Returns  integers: TIME's seconds and microseconds; then for each call
--            verdict    1 admitted, 0 denied, -1 stale (outside the window), -2 unreadable counter
--            answers    one for each charge: what remains, or -1 where it does not fit. Of a stale
--                       call all are 0; of an unreadable one, -2 marks the counters at fault.
--
-- A script that fails half-way keeps what it wrote, so everything is checked before the first write.
-- A counter is born with its value and its expiry in one command.

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

local time = redis.call('TIME')
local now = tonumber(time[1])

-- The count at a key: a number, nil if there is none, or false if it holds anything else.
local function read(key)
  local value = redis.pcall('GET', key)
  if not value then return nil end
  if type(value) == 'table' then return false end
  -- Only what INCRBY will take.
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return false end
  local count = tonumber(value)
  return count <= COUNT_MAX and count
end

local function write(key, before, after, expiry)
  if before == nil then
    if after > 0 then redis.call('SET', key, string.format('%.0f', after), 'PXAT', expiry) end
  elseif after ~= before then
    redis.call('INCRBY', key, string.format('%.0f', after - before))
  end
end

local function parse(at)
  local charges = {}
  for i = 1, tonumber(ARGV[at]) do
    local base = at + 8 * (i - 1)
    charges[i] = {
      key = tonumber(ARGV[base + 1]),
      start = tonumber(ARGV[base + 2]),
      length = tonumber(ARGV[base + 3]),
      expiry = ARGV[base + 4],
      kind = ARGV[base + 5],
      hits = tonumber(ARGV[base + 6]),
      limit = tonumber(ARGV[base + 7]),
      counted = ARGV[base + 8] == 'count',
    }
  end
  return charges, at + 8 * #charges + 1
end

-- Fills `answers` and returns the verdict.
local function judge(charges, answers)
  for _, charge in ipairs(charges) do
    if now < charge.start or now >= charge.start + charge.length then return -1 end
  end

  local accounts, verdict = {}, 1
  for i, charge in ipairs(charges) do
    local account = accounts[charge.key]
    if not account then
      local count = read(KEYS[charge.key])
      account = { before = count, used = count or 0, sum = 0, counted = 0, expiry = charge.expiry }
      accounts[charge.key] = account
    end
    if account.before == false then
      answers[i], verdict = -2, -2
    end
    charge.account = account
  end
  if verdict == -2 then return verdict end

  for _, charge in ipairs(charges) do
    local account = charge.account
    if charge.kind == 'give' then
      account.used = math.max(0, account.used - charge.hits)
    elseif charge.kind == 'take' then
      account.sum = account.sum + charge.hits
      if charge.counted then account.counted = account.counted + charge.hits end
    end
  end

  for _, charge in ipairs(charges) do
    local account = charge.account
    if charge.kind == 'take' then
      charge.fits = account.used + account.sum <= charge.limit
    elseif charge.kind == 'look' then
      charge.fits = account.used + 1 <= charge.limit
    else
      charge.fits = true
    end
    if not charge.fits then verdict = 0 end
  end

  for key, account in pairs(accounts) do
    local charged = verdict == 1 and account.sum or account.counted
    account.after = math.min(account.used + charged, COUNT_MAX)
    write(KEYS[key], account.before, account.after, account.expiry)
  end
  for i, charge in ipairs(charges) do
    -- A look sees what was there before the call's own charges.
    local account = charge.account
    local used = charge.kind == 'look' and account.used or account.after
    answers[i] = charge.fits and math.max(0, charge.limit - used) or -1
  end
  return verdict
end

local reply = { now, tonumber(time[2]) }
local at = 1
while at <= #ARGV do
  local charges, next_at = parse(at)
  local answers = {}
  reply[#reply + 1] = judge(charges, answers)
  for i = 1, #charges do reply[#reply + 1] = answers[i] or 0 end
  at = next_at
end
return reply
