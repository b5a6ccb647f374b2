-- Decides calls. Each is judged by itself, all or nothing, and a call's trouble stays its own.
--
-- KEYS     the counters; a charge names them by their places in this list
-- ARGV     calls, one after the other: the number of its charges, and the charges
-- Returns  integers: TIME's seconds and microseconds; then for each call
--            verdict    1 admitted, 0 denied, -1 stale (outside the window), -2 unreadable counter
--            answers    two for each charge: what remains, or -1 where it does not fit; and the reset
--                       in milliseconds. Of a stale call all are 0; of an unreadable one, -2 marks the
--                       counters at fault.

local function answer(charge, answers, i)
  local algorithm, account = charge.algorithm, charge.account
  if charge.fits then
    answers[2 * i - 1] = math.max(0, algorithm.remaining(account, charge))
    answers[2 * i] = algorithm.ends(account, charge) - now
  else
    local at = algorithm.admits_at and algorithm.admits_at(account, charge.asked, charge)
    answers[2 * i - 1] = -1
    answers[2 * i] = (at or algorithm.ends(account, charge)) - now
  end
  answers[2 * i] = math.max(0, answers[2 * i])
end

-- Fills `answers` and returns the verdict.
local function judge(charges, answers)
  for _, charge in ipairs(charges) do
    if is_stale(charge) then return -1 end
  end

  local accounts, readable = {}, true
  for i, charge in ipairs(charges) do
    local account = accounts[charge.key]
    if account == nil then
      account = charge.algorithm.read(charge) or false
      accounts[charge.key] = account
      if account then account.sum, account.charge = 0, charge end
    end
    if not account then answers[2 * i - 1], readable = -2, false end
    charge.account = account
  end
  if not readable then return -2 end

  for _, charge in ipairs(charges) do
    local account = charge.account
    if charge.kind == 'give' then
      charge.algorithm.give_back(account, charge.hits, charge)
    elseif charge.kind == 'take' then
      account.sum = account.sum + charge.hits
    end
  end

  -- What fits is asked before anything is charged; so is all that a look tells.
  local denied, for_free, quotas, quotas_fit = false, false, false, false
  for i, charge in ipairs(charges) do
    charge.asked = charge.kind == 'take' and charge.account.sum or 1
    charge.fits = charge.kind == 'give'
      or charge.algorithm.fits(charge.account, charge.asked, charge)
    if charge.kind == 'look' then answer(charge, answers, i) end
    if charge.kind ~= 'give' and charge.mode == 'quota' then
      quotas, quotas_fit = true, quotas_fit or charge.fits
    elseif not charge.fits and charge.mode == 'enforced' then
      denied, for_free = true, for_free or not charge.counted
    end
  end
  denied = denied or quotas and not quotas_fit

  for _, charge in ipairs(charges) do
    local counts = charge.fits and not denied or charge.counted
      or charge.mode == 'quota' and not for_free
    if charge.kind == 'take' and counts then charge.algorithm.charge(charge.account, charge) end
  end
  for i, charge in ipairs(charges) do
    if charge.kind ~= 'look' then answer(charge, answers, i) end
  end
  for _, account in pairs(accounts) do
    account.charge.algorithm.write(account, account.charge)
  end
  return denied and 0 or 1
end

local reply = { tonumber(time[1]), tonumber(time[2]) }
local at = 1
while at <= #ARGV do
  local charges, next_at = parse(at)
  local answers = {}
  reply[#reply + 1] = judge(charges, answers)
  for i = 1, 2 * #charges do reply[#reply + 1] = answers[i] or 0 end
  at = next_at
end
return reply
