-- Step 3: mapped task instances, deferral, events of assets.

alter table scope add column item_digest text;              -- of the item a position had when it was expanded
alter table scope add column reserved_attempt integer not null default 0; -- by a clear, until it is expanded again

alter table task add column mapped integer not null default 0;   -- 1: stands for instances not known yet
alter table task add column next_method text;               -- where an attempt that was deferred goes on
alter table task add column next_kwargs text;               -- JSON
alter table task add column trigger_path text;              -- the trigger's class
alter table task add column trigger_kwargs text;            -- JSON
alter table task add column deferrals integer not null default 0;
alter table task add column deadline integer;               -- of the trigger
alter table task add column event text;                     -- JSON: what the trigger fired, or why it failed
alter table task add column clear_on_success integer;       -- null: as the setting says
alter table task add column discard_on_clear integer;
create index task_deferred on task (run) where state = 'deferred';

alter table run add column events text not null default '[]';        -- JSON: ids of the asset events it was started for

create table asset_event (
    id integer primary key autoincrement,
    asset_name text,
    asset_uri text,
    at integer not null,
    dag_id text,                            -- the task that made it; null: a trigger or a person
    run_id text,
    task_id text,
    map_index integer,
    extra text not null default '{}'        -- JSON
);

create table consumer (
    dag_id text primary key,
    seen integer not null                   -- the newest asset event its runs were started for, or its first look
) without rowid;
