-- Configuration of luacheck, which scripts/check.sh runs over every script that Redis executes.
cache = false
max_line_length = false -- tables in comments are wider than the code

-- Lua 5.1 as Redis offers it to scripts: no files, no system, no further modules.
stds.redis = {
  read_globals = {
    'KEYS', 'ARGV', 'redis', 'struct', 'string', 'table', 'math',
    'error', 'ipairs', 'pairs', 'pcall', 'select', 'tonumber', 'tostring', 'type', 'unpack',
  },
}
std = 'redis'

-- Core puts the prelude's text in front of each script that does not begin with `#!lua` itself, so the prelude's locals are
-- in those scripts' scope. They are read from the file, so that this list cannot become stale.
local prelude = {}
for line in io.lines('lua/prelude.lua') do
  local names = line:match('^local function ([%w_]+)') or line:match('^local ([%w_, ]+) =')
  for name in (names or ''):gmatch('[%w_]+') do prelude[#prelude + 1] = name end
end
for name in require('lfs').dir('lua') do
  local file = 'lua/' .. name
  if name:match('%.lua$') and not io.lines(file)():match('^#!lua') then
    files[file].read_globals = prelude
  end
end
files['lua/prelude.lua'].ignore = { '211' } -- what is unused there is used by the scripts behind it
