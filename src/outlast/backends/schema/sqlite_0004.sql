-- Step 4: what is due after the last attempt of a task instance, and who runs the watchers of assets.

alter table task add column aftermath integer;              -- how often that was tried; null: nothing is due
alter table task add column cancel_due integer not null default 0; -- 1: its job ran out of time and was not cancelled
create index task_aftermath on task (run) where aftermath is not null;

create table watcher (
    digest text primary key,                -- of the trigger and the assets it watches
    holder text not null,                   -- JSON: host, pid, start time of the process that runs it
    lease_until integer not null
) without rowid;
