-- Step 5: access tokens, and the secrets that sign attempts' tokens.

create table token (
    id integer primary key autoincrement,
    digest blob not null unique,            -- SHA-256: the token itself is kept nowhere
    role text not null,
    name text not null,
    dags text not null,                     -- JSON: patterns of the DAGs it reaches
    created_at integer not null,
    expires_at integer,
    revoked_at integer,
    used_at integer                         -- to the minute
);

create table secret (
    id integer primary key autoincrement,
    content blob not null,
    created_at integer not null
);

alter table scope add column done integer not null default 0; -- the attempt that has succeeded: it writes no more

create table feed (
    number integer primary key,             -- the newest row is never removed, so that no number is used again
    at integer not null,
    scope_id integer,                       -- a commit: the scope it changed, and the revision it brought that to
    revision integer,
    run text                                -- JSON: dag id and run id of a run that is not as it was
);

create table receipt (
    id text primary key,
    scope_id integer,                       -- goes with this scope
    asked text not null,                    -- digest of the request
    reply text not null,                    -- JSON
    at integer not null
) without rowid;
create index receipt_at on receipt (at);
create index receipt_scope on receipt (scope_id) where scope_id is not null;

-- Task instances are in the order of their scopes, but for those of a restored store: theirs is the backup's, and
-- before that of any made since.
alter table task add column place integer;
