-- The answer to a call of which a command failed for a reason that has no code. It concerns no other call of the run.
local FAILED = -9

-- The refusal of a write that an error means, as replies spell it; nil for any other error. A server
-- refuses all writes of a run, or none, but for commands that the user may not run, for which few have a code.
-- Servers before 7.0 put the script's line in front of the code.
local function refusal_of(problem)
  local message = type(problem) == 'table' and problem.err or tostring(problem)
  local function says(code) return string.find(message, code, 1, true) end
  return says('OOM') and -3 or says('NOREPLICAS') and -4 or says('MISCONF') and -5 or says('READONLY') and -6
    or (says('NOPERM') or says('ACL failure') or says('The user executing the script')) and -8 or nil
end

