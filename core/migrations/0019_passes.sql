-- A campaign's rule that claims need a pass. An older core neither reads nor writes these columns; it cannot serve a Redis
-- whose campaigns have the layout with the rule.

-- 'always', 'until', or NULL if no pass is needed.
ALTER TABLE campaigns ADD COLUMN pass_required TEXT;
-- With 'until': when the campaign opens for all.
ALTER TABLE campaigns ADD COLUMN pass_until BIGINT;
