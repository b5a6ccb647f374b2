-- Decides calls, each by itself, all or nothing. A stale window, a corrupt counter or an error of a command concerns
-- only its call.
--
-- KEYS     the counters; a charge names them by their slots in this list
-- ARGV     calls, one after the other: the number of its charges, and the charges, see charge.lua
-- Returns  integers: TIME's seconds and microseconds; then for each call
--            verdict    1 admitted, or if it has parts the hits of each that fit; 0 denied; or nothing was charged: -1 a window is not the present one,
--                       -2 a counter is corrupt and its limit does not decide the call, -3 to -6 and -8 it
--                       would be admitted, but the server takes no writes, see refusal.lua; -7 another server
--                       of the cluster has one of its keys; -9 a command of it failed for another reason, and those
--                       before it may have been done; -13 to -18 it is denied, and for the reason -3 to -8 what
--                       still counts was not written
--            answers    two for each charge: what remains, -1 where it does not fit, -2 where the counter
--                       is corrupt, or what became of a commit, see holds.lua; and the reset in milliseconds. Where nothing was charged
--                       all are 0, but for -2
--            held       for each charge that may end a hold by id or by counter the hits of that hold, or 0
local ADMITTED, DENIED, STALE, CORRUPT, ELSEWHERE = 1, 0, -1, -2, -7
-- Is added to the refusal of a denied call.
local UNWRITTEN = -10

local function answer(charge, answers, i)
  local algorithm, account = charge.algorithm, charge.account
  if not account then
    answers[2 * i - 1], answers[2 * i] = CORRUPT, 0
  elseif charge.fits then
    local remaining = algorithm.remaining(account, charge) - (charge.hold and held(charge) or 0)
    answers[2 * i - 1] = charge.commit or math.max(0, remaining)
    answers[2 * i] = math.max(0, algorithm.ends(account, charge) - now)
  else
    local at = charge.hold and closed_until(charge) or algorithm.admits_at and algorithm.admits_at(account, charge.asked, charge)
    answers[2 * i - 1] = -1
    answers[2 * i] = math.max(0, (at or algorithm.ends(account, charge)) - now)
  end
end

-- Reads the account of each charge, once for each key, and what is known of its hold; a charge where either is corrupt
-- gets none. Returns the accounts by their keys, the failure modes of the corrupt counters, and what is known of holds by
-- its keys; nil if no charge acts on one.
local function read_accounts(charges, answers)
  local accounts, failure_modes, known = {}, {}, nil
  for i, charge in ipairs(charges) do
    local account = accounts[charge.key]
    if account == nil then
      account = charge.algorithm.read(charge) or false
      if account then account.sum, account.charge = 0, charge end
      accounts[charge.key] = account
    elseif account and charge.algorithm.finish then
      expire_calls(account)
    end
    local hold = charge.hold
    if hold then
      known = known or {}
      hold.known = hold.key and read_hold(charge, known)
      account = hold.known ~= false and account
    end
    charge.account = account
    if not account then
      answers[2 * i - 1] = CORRUPT
      -- A refund denies nothing, but a caller must hear that it is lost.
      local is_lost = charge.kind == 'refund' and charge.failure_mode == 'deny'
      failure_modes[is_lost and 'error' or charge.failure_mode] = true
    end
  end
  return accounts, failure_modes, known
end

-- All refunds of a counter are one, so that it is searched once.
local function refund_and_sum(charges, accounts)
  for _, charge in ipairs(charges) do
    local account = charge.account
    if charge.commit then
      charge.fits = true
    elseif account and charge.kind == 'refund' then
      account.refunded = (account.refunded or 0) + charge.hits
    elseif account and charge.kind == 'give_back' then
      if charge.hold then give_back_hold(charge) end
      charge.algorithm.give_back(account, charge.hits, charge, charge.hits)
    elseif account and charge.kind == 'charge' then
      account.sum = account.sum + charge.hits
    end
  end
  for _, account in pairs(accounts) do
    if account and account.refunded then account.charge.algorithm.refund(account, account.refunded, account.charge) end
  end
end

-- Judges every charge before any is made, and answers checks by the state before. Returns whether the call is
-- denied, and whether a limit denies it that does not charge denied calls.
local function vote(charges, answers)
  local denied, denied_uncharged, quotas, drawn = false, false, {}, {}
  for i, charge in ipairs(charges) do
    local denies, opens = false, charge.hold and charge.hold.action == 'open'
    charge.skipped = false
    if charge.commit then
      denies = false
    elseif not charge.account then
      denies = is_judged(charge) and charge.failure_mode == 'deny'
    elseif is_judged(charge) then
      charge.asked = (charge.kind == 'charge' or opens) and charge.account.sum or charge.hits
      if charge.hold then charge.asked = charge.asked + asked_beside(charge) end
      local is_closed = charge.hold and closed_until(charge)
      charge.fits = not is_closed and charge.algorithm.fits(charge.account, charge.asked, charge)
      if charge.kind == 'check' and not opens then answer(charge, answers, i) end
      denies = charge.mode == 'enforced' and not charge.fits
      local has_room, has_vote = charge.fits or charge.always_fits, charge.mode == 'quota' or charge.always_fits
      if charge.draws_first and charge.mode ~= 'enforced' then
        -- The first with room, or if none has the last, stands for the group.
        local group = charge.group or 0
        local before = drawn[group]
        if before and (before.fits or before.always_fits) then
          charge.skipped = true
        else
          if before then before.skipped = true end
          drawn[group] = charge
          -- A shadow leaves the group without a vote.
          if has_vote then quotas[group] = has_room else quotas[group] = nil end
        end
      elseif has_vote then
        -- A quota without a group is one of its own.
        local group = charge.group or -i
        quotas[group] = quotas[group] ~= false and has_room
      end
    else
      charge.fits = true
    end
    if denies then denied, denied_uncharged = true, denied_uncharged or not charge.counted end
  end
  if next(quotas) and not denied then
    denied = true
    for _, fits in pairs(quotas) do denied = denied and not fits end
  end
  return denied, denied_uncharged
end

-- The hits that the parts of a call ask for; nil if it has none.
local function part_of(charges)
  for _, charge in ipairs(charges) do
    if charge.is_part and charge.kind == 'charge' then return charge.hits end
  end
end

-- Gives each part as many hits as let the call pass, fewer than `most`; 1 if none do. Returns their number.
local function fit_parts(charges, answers, most)
  local function admits(hits)
    for _, charge in ipairs(charges) do
      if charge.is_part and charge.kind == 'charge' then
        if charge.account then charge.account.sum = charge.account.sum + (hits - charge.hits) end
        charge.hits = hits
      end
    end
    return not vote(charges, answers)
  end
  local fitting, over = 1, most
  while over - fitting > 1 do
    local middle = fitting + math.floor((over - fitting) / 2)
    if admits(middle) then fitting = middle else over = middle end
  end
  admits(fitting)
  return fitting
end

-- Adds the charges that have opened holds to `opened`.
local function charge_all(charges, denied, denied_uncharged, opened)
  for _, charge in ipairs(charges) do
    local algorithm, hold, is_taken = charge.algorithm, charge.hold, charge.fits and not denied and not charge.skipped
    local stands = is_taken or not charge.estimated and not charge.skipped
      and (charge.counted or charge.mode == 'quota' and not charge.draws_first and not denied_uncharged)
    if charge.account and charge.kind == 'charge' and stands and not charge.commit then
      algorithm.charge(charge.account, charge)
    end
    if hold and charge.account and charge.kind == 'charge' and not charge.fits then close(charge) end
    if hold and is_taken and charge.account and is_judged(charge) and not charge.commit then take_hold(charge, opened) end
  end
end

local function write_all(accounts, known)
  if known then write_holds(known) end
  for _, account in pairs(accounts) do
    if account then account.charge.algorithm.write(account, account.charge) end
  end
end

-- Fills `answers` and returns the verdict.
local function judge(charges, answers)
  expired_max = math.max(1, math.floor(CALLS_MAX / #charges))
  for _, charge in ipairs(charges) do
    if is_stale(charge) then return STALE end
    local beside, take = charge.hold and charge.hold.key, charge.hold and charge.hold.take
    if is_elsewhere(charge.key) or charge.previous and is_elsewhere(charge.previous)
      or beside and is_elsewhere(beside) or take and is_elsewhere(take) then return ELSEWHERE end
  end
  local accounts, failure_modes, known = read_accounts(charges, answers)
  if failure_modes['local'] then return CORRUPT end
  if known then begin_holds(charges, known) end
  refund_and_sum(charges, accounts)
  local denied, denied_uncharged = vote(charges, answers)
  local part = part_of(charges)
  if part and denied then
    part = fit_parts(charges, answers, part)
    denied = vote(charges, answers)
    denied_uncharged = denied
  end
  if failure_modes['error'] and not denied then return CORRUPT end
  local opened = {}
  charge_all(charges, denied, denied_uncharged, opened)
  if #opened > 0 then open_holds(opened, known) end

  local written, problem = pcall(write_all, accounts, known)
  local refusal
  if not written then
    refusal = refusal_of(problem)
    if not refusal then error(problem) end
    if not denied then return refusal end
  end
  for i, charge in ipairs(charges) do
    local is_answered = charge.kind == 'check' and charge.account and not (charge.hold and charge.hold.action == 'open')
    if not is_answered then answer(charge, answers, i) end
  end
  if denied then return refusal and refusal + UNWRITTEN or DENIED end
  return part or ADMITTED
end

local reply = { tonumber(time[1]), tonumber(time[2]) }
local at = 1
while at <= last_argument do
  local charges, next_at = parse(at)
  local answers = {}
  local is_judged, verdict = pcall(judge, charges, answers)
  if not is_judged then verdict = refusal_of(verdict) or FAILED end
  reply[#reply + 1] = verdict
  local is_decided = verdict >= DENIED or verdict < UNWRITTEN
  for i = 1, 2 * #charges do
    local known = answers[i] or 0
    reply[#reply + 1] = (is_decided or known == CORRUPT) and known or 0
  end
  for _, charge in ipairs(charges) do
    local action = charge.hold and charge.hold.action
    if action == 'by_id' or action == 'end_oldest' then reply[#reply + 1] = is_decided and charge.ended_hits or 0 end
  end
  at = next_at
end
return reply
