-- Why the server takes no writes, as replies say it. It refuses all writes of a run, or none.
local REFUSALS = { OOM = -3, NOREPLICAS = -4, MISCONF = -5, READONLY = -6 }

-- The refusal that the error of a command says; nil if it says anything else. Servers before 7.0 put the
-- script's line in front.
local function refusal_of(problem)
  local message = type(problem) == 'table' and problem.err or tostring(problem)
  for code, refusal in pairs(REFUSALS) do
    if string.find(message, code, 1, true) then return refusal end
  end
  return nil
end

