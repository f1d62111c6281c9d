"""Which of Airflow's modules have which names, what each is called in outlast, and what to use for those it lacks."""

from __future__ import annotations

from .airflow_missing import CONNECTION, TEMPLATES, VARIABLE

__all__ = ["HOMES", "MODULES", "instead_of"]

#: Where a name is defined: outlast's module, then its names there, `theirs=ours` where they differ.
_DEFINED = {
    "graph": "DAG dag",
    "links": "chain",
    "operators": "BaseOperator BaseAsyncOperator=BaseOperator",
    "context": "get_current_context Context TaskInstance DagRun",
    "references": "XComArg=Result",
    "resumable": "ResumableJobMixin",
    "assets": "Asset asset AssetAlias AssetAll AssetAny AssetWatcher AssetNameRef AssetUriRef Dataset=Asset Metadata",
    "task_functions": "task",
    "triggers": "BaseTrigger BaseEventTrigger TriggerEvent DateTimeTrigger TimeDeltaTrigger",
    "sensors": "BaseSensorOperator PokeReturnValue",
    "outcomes": "AirflowException=TaskError AirflowSkipException=SkipTask AirflowFailException=FailTask "
    "AirflowRescheduleException=TaskRescheduled AirflowSensorTimeout=SensorTimeout AirflowTaskTimeout=TaskTimeout "
    "TaskDeferred TaskDeferralError TaskDeferralTimeout",
    "params": "Param",
    "airflow_parts": "EmptyOperator PythonOperator BashOperator chain_linear cross_downstream conf TriggerRule "
    "TaskInstanceState DagRunState State AirflowConfigException AirflowNotFoundException version "
    "utc utcnow datetime=aware parse make_aware is_localized convert_to_utc",
    ".values": "NEVER_EXPIRE",
}
HOMES = {
    name.partition("=")[0]: f"{home}:{name.rpartition('=')[2]}"
    for home, names in _DEFINED.items()
    for name in names.split()
}

_ASSETS = "Asset AssetAlias AssetAll AssetAny AssetNameRef AssetUriRef AssetWatcher"
_ERRORS = (
    "AirflowException AirflowSkipException AirflowFailException AirflowRescheduleException AirflowSensorTimeout "
    "AirflowTaskTimeout AirflowConfigException AirflowNotFoundException TaskDeferred TaskDeferralError "
    "TaskDeferralTimeout"
)
_LINKS = "chain chain_linear cross_downstream"
_SDK = (
    f"{_ASSETS} {_LINKS} BaseAsyncOperator BaseOperator BaseSensorOperator Context DAG DagRunState Metadata "
    "NEVER_EXPIRE Param PokeReturnValue ResumableJobMixin TaskInstance TaskInstanceState TriggerRule XComArg asset "
    "conf dag get_current_context task"
)
_STATES = "DagRunState TaskInstanceState"
_TIME = "utc utcnow datetime parse make_aware is_localized convert_to_utc"
_TRIGGERS = "BaseTrigger BaseEventTrigger TriggerEvent"
_TEMPORAL = "DateTimeTrigger TimeDeltaTrigger"

#: Airflow's modules, with the names each has. Those of Airflow 2 are here where they still are in use.
MODULES = {
    name: frozenset(names.split())
    for name, names in {
        "airflow": "DAG Asset Dataset XComArg",
        "airflow.configuration": "conf",
        "airflow.datasets": "Dataset",
        "airflow.decorators": "asset dag task",
        "airflow.exceptions": _ERRORS,
        "airflow.models": "BaseOperator DAG DagRun Param TaskInstance XComArg",
        "airflow.models.baseoperator": f"BaseOperator {_LINKS}",
        "airflow.models.dag": "DAG",
        "airflow.models.dagrun": "DagRun",
        "airflow.models.param": "Param",
        "airflow.models.taskinstance": "TaskInstance",
        "airflow.models.xcom_arg": "XComArg",
        "airflow.operators": "",
        "airflow.operators.bash": "BashOperator",
        "airflow.operators.empty": "EmptyOperator",
        "airflow.operators.python": "PythonOperator get_current_context",
        "airflow.providers": "",
        "airflow.providers.common": "",
        "airflow.providers.common.compat": "",
        "airflow.providers.common.compat.sdk": f"{_SDK} {_ERRORS} {_TRIGGERS}",
        "airflow.providers.standard": "",
        "airflow.providers.standard.operators": "",
        "airflow.providers.standard.operators.bash": "BashOperator",
        "airflow.providers.standard.operators.empty": "EmptyOperator",
        "airflow.providers.standard.operators.python": "PythonOperator get_current_context",
        "airflow.providers.standard.triggers": "",
        "airflow.providers.standard.triggers.temporal": _TEMPORAL,
        "airflow.sdk": _SDK,
        "airflow.sdk.bases": "",
        "airflow.sdk.bases.operator": f"BaseAsyncOperator BaseOperator {_LINKS}",
        "airflow.sdk.bases.resumablejobmixin": "ResumableJobMixin",
        "airflow.sdk.bases.resumablemixin": "ResumableJobMixin",
        "airflow.sdk.bases.sensor": "BaseSensorOperator PokeReturnValue",
        "airflow.sdk.bases.trigger": _TRIGGERS,
        "airflow.sdk.configuration": "conf",
        "airflow.sdk.definitions": "",
        "airflow.sdk.definitions.asset": _ASSETS,
        "airflow.sdk.definitions.asset.decorators": "asset",
        "airflow.sdk.definitions.asset.metadata": "Metadata",
        "airflow.sdk.definitions.context": "Context get_current_context",
        "airflow.sdk.definitions.dag": "DAG dag",
        "airflow.sdk.definitions.decorators": "task",
        "airflow.sdk.definitions.param": "Param",
        "airflow.sdk.definitions.xcom_arg": "XComArg",
        "airflow.sdk.exceptions": _ERRORS,
        "airflow.sdk.execution_time": "",
        "airflow.sdk.execution_time.context": "NEVER_EXPIRE",
        "airflow.sdk.timezone": _TIME,
        "airflow.sdk.types": "TaskInstance",
        "airflow.sensors": "",
        "airflow.sensors.base": "BaseSensorOperator PokeReturnValue",
        "airflow.triggers": "",
        "airflow.triggers.base": _TRIGGERS,
        "airflow.triggers.temporal": _TEMPORAL,
        "airflow.utils": "",
        "airflow.utils.context": "Context",
        "airflow.utils.state": f"{_STATES} State",
        "airflow.utils.timezone": _TIME,
        "airflow.utils.trigger_rule": "TriggerRule",
        "airflow.version": "version",
    }.items()
}

_FUNCTION = "put the work into a function under @task"
_JOB = (
    "call the service's own client in a @task, or derive from BaseOperator, with ResumableJobMixin for a job "
    "that must not be started twice"
)
_CRON = "schedule= is recorded, not acted on, so run the file from cron"
_GROUPS = "tasks are not grouped; use `a >> [b, c] >> d`, and a prefix in the task_id"
_BRANCH = "raise AirflowSkipException in the tasks that are not to run"
_DATABASE = "it has no database of Airflow's; use the outlast command or the Store"
_LABELS = "edges have no labels; write `a >> b`"
_RETRIES = "use retries=, retry_delay= and, to give up at once, AirflowFailException"
_BASH = "run the other interpreter with BashOperator"
_RESULTS = "what a task returns is its result; for more use ti.xcom_push and ti.xcom_pull"
_SENSOR = "derive from BaseSensorOperator, or use @task.sensor"
_CALLBACKS = "use a function for on_failure_callback= and the like"

_OF_TODAY = ("airflow.providers.standard", "airflow.sdk", "airflow.triggers.base")

#: What there is instead, by the last part of a name or by the beginning of a module's; the longest one counts.
_INSTEAD = {
    "AssetAccessControl": "everybody who can open the store may use an asset",
    "AssetOrTimeSchedule": f"use schedule=[asset]; {_CRON}",
    "AsyncCallback": _CALLBACKS,
    "BaseBranchOperator": _BRANCH,
    "BaseHook": CONNECTION,
    "BaseNotifier": _CALLBACKS,
    "BaseOperatorLink": "it has no web links; print the address, which is then in the task's log",
    "BaseXCom": _RESULTS,
    "BranchMixIn": _BRANCH,
    "BranchPythonOperator": _BRANCH,
    "Connection": CONNECTION,
    "DeadlineAlert": "use execution_timeout= of the tasks",
    "DeadlineReference": "use execution_timeout= of the tasks",
    "EdgeModifier": _LABELS,
    "ExternalPythonOperator": _BASH,
    "Label": _LABELS,
    "LatestOnlyOperator": "every run is the latest; leave it out",
    "ObjectStoragePath": "use the storage's own client, or fsspec",
    "ParamsDict": "params are a dict",
    "RetryPolicy": _RETRIES,
    "ExceptionRetryPolicy": _RETRIES,
    "ShortCircuitOperator": _BRANCH,
    "SkipMixin": _BRANCH,
    "StartTriggerArgs": "call self.defer(trigger=…, method_name=…) in execute",
    "SyncCallback": _CALLBACKS,
    "TaskGroup": _GROUPS,
    "TriggerDagRunOperator": "give the other DAG schedule=[asset] and this task outlets=[asset]",
    "Variable": VARIABLE,
    "PythonVirtualenvOperator": _BASH,
    "WeightRule": "tasks have no priorities",
    "XCom": _RESULTS,
    "airflow.hooks": CONNECTION,
    "airflow.macros": TEMPLATES,
    "airflow.models.connection": CONNECTION,
    "airflow.models.variable": VARIABLE,
    "airflow.notifications": _CALLBACKS,
    "airflow.operators": _FUNCTION,
    "airflow.plugins_manager": "it has no plug-ins",
    "airflow.providers": _JOB,
    "airflow.providers.standard.operators": _FUNCTION,
    "airflow.providers.standard.sensors": _SENSOR,
    "airflow.providers.standard.triggers": "derive from BaseTrigger",
    "airflow.sdk.definitions.taskgroup": _GROUPS,
    "airflow.sdk.state": "derive a backend from outlast.backends.Backend, and name it in [state_store] backend",
    "airflow.sensors": _SENSOR,
    "airflow.settings": _DATABASE,
    "airflow.timetables": _CRON,
    "airflow.utils.dates": "use datetime",
    "airflow.utils.db": _DATABASE,
    "airflow.utils.edgemodifier": _LABELS,
    "airflow.utils.email": "send it with smtplib, in a callback",
    "airflow.utils.session": _DATABASE,
    "airflow.utils.task_group": _GROUPS,
    "get_parsing_context": "the file is read for every attempt; define all its DAGs",
    "lineage": "use inlets= and outlets=",
    "literal": "it has no templates, so every text is literal",
    "macros": TEMPLATES,
    "setup": "make it an ordinary task above the others",
    "task_group": _GROUPS,
    "teardown": 'make it an ordinary task below the others, with trigger_rule="all_done"',
}


def instead_of(name: str) -> str:
    """Say what to use for something of Airflow's, given by its full name; an empty text where that is not known."""
    module, _, last = name.rpartition(".")
    if last in HOMES and last not in MODULES.get(module, ()):
        return f"import it from {_place_of(last)}"
    if last in _INSTEAD:
        return _INSTEAD[last]
    if last.endswith("Timetable"):
        return _CRON
    if last.endswith(("Mapper", "Window")):
        return "assets have no partitions; keep what a run is about in params or the asset's state"
    prefixes = [prefix for prefix in _INSTEAD if name == prefix or name.startswith(f"{prefix}.")]
    return _INSTEAD[max(prefixes, key=len)] if prefixes else ""


def _place_of(name: str) -> str:
    """Return the module of Airflow 3 that has a name, the shortest of several."""
    places = [module for module, names in MODULES.items() if name in names]
    return min(places, key=lambda module: (not module.startswith(_OF_TODAY), len(module)))
