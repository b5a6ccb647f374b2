-- Two clock-aligned counters, the present one and the one before, weighed. All is reckoned in hits
-- times milliseconds; a limit times its window is below 2^53, and anything above that is over the limit anyway.
local sliding_window = { aligned = true }
ALGORITHMS.sw = sliding_window

function sliding_window.read(charge)
  local current, previous = read_count(charge.key), 0
  if charge.previous then previous = read_count(charge.previous) end
  if current == false or previous == false then return nil end
  return { key = charge.key, before = current, used = current or 0, previous = previous or 0 }
end

-- The weight of the window before. A give-back may come after its window, or before it if the clock was set back.
local function until_stop(charge)
  return math.max(0, math.min(charge.window, charge.stop - now))
end

local function weighed(account, charge)
  return account.previous * until_stop(charge) + account.used * charge.window
end

function sliding_window.refund(account, hits)
  account.used = math.max(0, account.used - hits)
end

function sliding_window.give_back(account, hits)
  account.used = given_back(account.used, hits)
end

function sliding_window.fits(account, hits, charge)
  return weighed(account, charge) + hits * charge.window <= charge.limit * charge.window
end

function sliding_window.charge(account, charge)
  account.used = math.min(account.used + charge.hits, COUNT_MAX)
end

function sliding_window.used(account, charge)
  local before = div_ceil(account.previous * until_stop(charge), charge.window)
  return math.min(account.used + before, COUNT_MAX)
end

function sliding_window.remaining(account, charge)
  return div_floor(charge.limit * charge.window - weighed(account, charge), charge.window)
end

function sliding_window.ends(account, charge)
  if account.used > 0 then return charge.stop + charge.window end
  return account.previous > 0 and charge.stop or now
end

function sliding_window.admits_at(account, hits, charge)
  if hits > charge.limit then return sliding_window.ends(account, charge) end
  local stop, room, previous = charge.stop, charge.limit - hits - account.used, account.previous
  if room < 0 then
    stop, room, previous = stop + charge.window, charge.limit - hits, account.used
  end
  if previous == 0 then return stop - charge.window end
  return stop - math.min(charge.window, div_floor(room * charge.window, previous))
end

function sliding_window.write(account, charge)
  write_count(account.key, account.before, account.used, charge.expiry)
end
