-- Step 6: which of several task instances of one name a scope is of, where an engine uses a run's name again.

alter table scope add column origin text;                   -- as the engine calls it; null: nobody has said
alter table scope add column started_at integer;            -- when that began, by the engine's clock
alter table scope add column fenced_at integer not null default 0; -- when an attempt without an origin raised the fence
