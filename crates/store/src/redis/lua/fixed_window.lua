-- A counter for each clock-aligned window: a number, at a key that names the window.
local fixed_window = { aligned = true }
ALGORITHMS.fw = fixed_window

function fixed_window.read(charge)
  local used = read_count(charge.key)
  if used == false then return nil end
  return { key = charge.key, before = used, used = used or 0 }
end

function fixed_window.refund(account, hits)
  account.used = math.max(0, account.used - hits)
end

function fixed_window.give_back(account, hits)
  account.used = given_back(account.used, hits)
end

function fixed_window.fits(account, hits, charge)
  return account.used + hits <= charge.limit
end

function fixed_window.charge(account, charge)
  account.used = math.min(account.used + charge.hits, COUNT_MAX)
end

function fixed_window.used(account)
  return account.used
end

function fixed_window.remaining(account, charge)
  return charge.limit - account.used
end

function fixed_window.ends(_, charge)
  return charge.stop
end

function fixed_window.write(account, charge)
  write_count(account.key, account.before, account.used, charge.expiry)
end
