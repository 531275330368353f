-- luacheck's configuration. scripts/check.sh runs it over every script that Redis executes.
cache = false
max_line_length = false -- tables in comments are wider than the code

-- Lua 5.1 as Redis provides it to scripts: no files, no system calls, no other modules.
stds.redis = {
  read_globals = {
    'KEYS', 'ARGV', 'redis', 'struct', 'string', 'table', 'math',
    'error', 'ipairs', 'pairs', 'pcall', 'select', 'tonumber', 'tostring', 'type', 'unpack',
  },
}
std = 'redis'

-- Core prepends the prelude to every script that does not begin with `#!lua`, so the prelude's locals are in
-- scope there. Reading their names from the file keeps this list current.
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
files['lua/prelude.lua'].ignore = { '211' } -- unused locals of the prelude are used by the scripts
