-- Step 2: runs, task instances, attempts, results, and what people did.

create table run (
    id integer primary key autoincrement,
    dag_id text not null,
    run_id text not null,
    state text not null,
    params text not null,                   -- JSON
    file text not null,
    digest text not null,                   -- of the file's content
    logical_date integer not null,
    created_at integer not null,
    started_at integer,
    ended_at integer,
    holder text,                            -- JSON: host, pid, start time of the runner
    lease_until integer not null default 0,
    unique (dag_id, run_id)
);
create index run_ended on run (ended_at) where ended_at is not null;

create table task (
    scope_id integer primary key,
    run integer not null,
    state text not null,
    attempt integer not null default 0,     -- the newest one begun by a runner
    reserved integer not null default 0,    -- the fence a clear has raised for the attempt to come
    failures integer not null default 0,
    crashes integer not null default 0,
    due_at integer,
    lease_until integer not null default 0,
    started_at integer,
    ended_at integer,
    error text,
    supervisor text,                        -- JSON: host, pid, start time
    child text,
    upstream text not null default '[]'     -- JSON: task ids
);
create index task_run on task (run);

create table attempt (
    scope_id integer not null,
    number integer not null,
    state text not null,
    started_at integer not null,
    ended_at integer,
    supervisor text,
    error text,
    primary key (scope_id, number)
) without rowid;

create table result (
    scope_id integer not null,
    name text not null,
    value text not null,                    -- JSON
    primary key (scope_id, name)
) without rowid;

create table audit (
    id integer primary key autoincrement,
    at integer not null,
    who text not null,
    action text not null,
    place text not null,
    dag_id text,
    name text,
    old text,
    new text
);
create index audit_dag on audit (dag_id, id);
