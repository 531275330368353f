#!lua flags=no-writes
-- rights: checks that core's user may run commands in scripts, without running them.
--
-- KEYS  none
-- ARGV  1 a key of core   2… the commands, container commands with their subcommand
--
-- Replies
--   the number of commands; or the error NOPERM with the first command that the user may not run on the key

for at = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[at], '%S+') do words[#words + 1] = word end
  words[#words + 1] = ARGV[1]
  if not redis.acl_check_cmd(unpack(words)) then
    return redis.error_reply('-NOPERM a script may not run ' .. ARGV[at] .. ' on ' .. ARGV[1])
  end
end
return #ARGV - 1
