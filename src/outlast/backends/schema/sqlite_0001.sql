-- Step 1: scopes, entries and their history. Times are microseconds since 1970-01-01 UTC.

create table scope (
    id integer primary key autoincrement,
    digest blob not null unique,            -- of the address: what it is found and locked by
    dag_id text,
    run_id text,
    task_id text,
    map_index integer,
    item text,                              -- the item's key where state follows the item
    asset_name text,
    asset_uri text,
    revision integer not null default 0,    -- of its last commit
    fence integer not null default 0,       -- the newest attempt that has opened it
    floor integer not null default 0,       -- a cursor below this is too old to go on from
    changed_at integer not null,
    sweep_at integer                        -- not later than the first moment there is something to sweep
);
create index scope_place on scope (dag_id, run_id, task_id, map_index) where dag_id is not null;
create unique index scope_asset_name on scope (asset_name) where asset_name is not null;
create unique index scope_asset_uri on scope (asset_uri) where asset_uri is not null;
create index scope_sweep on scope (sweep_at) where sweep_at is not null;

create table entry (
    scope_id integer not null,
    name text not null,
    value text,                             -- canonical JSON; null: deleted, kept as a tombstone
    revision integer not null,
    updated_at integer not null,
    expires_at integer,
    writer text,                            -- null: a program using the library
    version integer not null,               -- counts the writes of this key
    kept integer not null default 0,        -- at least the bytes its history holds
    ring integer not null default 0,        -- the size of the ring its history was laid out in
    primary key (scope_id, name)
) without rowid;

create table history (
    scope_id integer not null,
    name text not null,
    slot integer not null,                  -- version modulo the number of kept ones: a ring
    value text,
    revision integer not null,
    updated_at integer not null,
    writer text,
    version integer not null,
    primary key (scope_id, name, slot)
) without rowid;
