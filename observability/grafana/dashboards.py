#!/usr/bin/env python3
"""Writes the dashboards: `python3 observability/grafana/dashboards.py`; `--check` says whether they are as written.

What a query may name is the catalogue of metrics; a test of `tests/` parses every one and looks each name up.
"""

import json
import sys
from pathlib import Path

from panels import (dashboard, heatmap, link, logql, mean, panel, per_minute, quantiles, query, stacked, tenant_variable,
                    text_variable, traceql, variable)

FOLDER = Path(__file__).resolve().with_name("dashboards")

# Of the outputs that a deployment is to answer for: who cancels, or wants it sooner than anybody promised, or what no engine
# takes, has got what was asked for. FrescoErrorBudgetBurn counts alike.
OUTPUTS = "fresco_output_duration_seconds_count"
DONE = '{outcome="done"}'
MISSED = '{outcome=~"failed|expired"}'
ANSWERED = '{outcome=~"done|failed|expired"}'
# Requests that were turned away for want of the deployment itself.
UNSERVED = 'fresco_rejections_total{reason=~"not_ready|bus_unavailable|internal"}'
# One bad output in a hundred is the budget.
BUDGET = 0.01
INTERVAL = "[$__rate_interval]"
# Of Tempo's own /metrics, with and without what OpenMetrics adds to a counter's name.
EDGES, EXPIRED, DROPPED = (f'{{__name__=~"tempo_metrics_generator_processor_service_graphs_{name}(_total)?"}}'
                           for name in ("edges", "expired_edges", "dropped_spans"))
# Of panels that only Tempo's own generator feeds: what a collector has kept back is too old for it.
DIRECT = " No data where a collector that samples stands before Tempo."
# Spans know the prefix of their deployment, which nothing that Tempo makes of them has as a label.
OF_CHOSEN = 'resource.service.namespace =~ "$namespace"'
OF_ALL = " Of all deployments."
# Of the graph: what says nothing of a job is left out of it there.
OF_JOBS = " Behind a collector without looks at jobs and refusals."


def overview():
    answers = lambda which, window: f"sum(rate({OUTPUTS}{which}[{window}]) or rate({UNSERVED}[{window}]))"
    burn = lambda window: f"{answers(MISSED, window)} / {answers(ANSWERED, window)} / {BUDGET}"
    now = [
        panel("Pictures per minute", "Pictures finished per minute, of jobs that any gateway let in.", "short",
              query(per_minute(OUTPUTS, where=DONE), "pictures"), kind="stat", must=True, width=6, height=5),
        panel("Open outputs", "Outputs accepted and not ended, over all gateways.", "short",
              query("sum(fresco_outputs_open)", "open"), kind="stat", must=True, width=6, height=5),
        panel("Median job", "Half of the jobs of the last minutes that got all their pictures took no longer, from request to "
              "last picture.", "s",
              quantiles("fresco_job_duration_seconds", where=DONE, of=(0.5,)), kind="stat", must=True, width=6, height=5),
        panel("Denoiser seconds per picture", "What a picture costs at the denoisers: time of their devices over pictures "
              "painted; attempts that came to nothing count, devices of AR engines do not.", "s",
              query(f"sum(rate(fresco_device_busy_seconds_total{INTERVAL})) / sum(rate(fresco_outputs_painted_total{INTERVAL}))",
                    "per picture"), kind="stat", must=True, width=6, height=5),
    ]
    work = [
        stacked("Outputs by outcome", "Outputs that ended per minute, by how they ended.", "short",
                query(per_minute(OUTPUTS, by="outcome"), "{{outcome}}"), must=True),
        panel("Job duration", "From accepting a request to its last picture, of jobs that got them all: one that fails at once "
              "makes none of them fast. The points are traces of single jobs.", "s",
              quantiles("fresco_job_duration_seconds", where=DONE), must=True),
        heatmap("Jobs by duration", "How many jobs that got their pictures took how long; a point opens the trace of one.", "s",
                f"sum by (le) (rate(fresco_job_duration_seconds_bucket{DONE}{INTERVAL}))", must=True),
        panel("Mean duration by size", "Of jobs that got their pictures. Size classes end at 512, 1024 and 1536 pixels squared.", "s",
              query(mean("fresco_job_duration_seconds", where=DONE, by="size_class"), "{{size_class}}")),
        panel("Mean duration by priority", "What priority buys, of jobs that got their pictures.", "s",
              query(mean("fresco_job_duration_seconds", where=DONE, by="class"), "{{class}}")),
        panel("Forecast and real wait", "What an output accepted now is forecast to wait, by class, and what finished "
              "pictures have waited for both stages.", "s",
              [query("max by (class) (fresco_queue_eta_seconds)", "forecast {{class}}"),
               query(f'sum(rate(fresco_stage_wait_seconds_sum{{stage=~"ar|denoise"}}{INTERVAL})) '
                     f"/ sum(rate(fresco_unattributed_seconds_count{INTERVAL}))", "real")], must=True),
    ]
    promise = [
        panel("Error budget burn", "Outputs that failed or missed the deployment's own deadline, and requests that it answered "
              f"with 503 or 500, against a budget of {BUDGET:.0%}: 1 uses it up exactly, 14.4 uses up a month's in two days.",
              "short",
              [query(burn("5m"), "5 minutes"), query(burn("1h"), "1 hour"), query(burn("6h"), "6 hours")]),
        panel("Refused requests", "Requests for pictures that did not become jobs, by error code.", "short",
              query(per_minute("fresco_rejections_total", by="reason"), "{{reason}}"), must=True),
        panel("Refused for want of room", "Outputs of requests that were told to come back later.", "short",
              query(per_minute("fresco_outputs_refused_total"), "outputs")),
        panel("Missed deadlines", "Outputs that ended at their deadline, ours or a sooner one of their clients, and those that a "
              "gateway had to end itself.", "short",
              [query(per_minute("fresco_deadline_missed_total"), "missed"),
               query(per_minute("fresco_outputs_expired_total"), "ended by a gateway")]),
        panel("Requests", "Requests that became jobs, that joined one by their key, and jobs that were cancelled.", "short",
              [query(per_minute("fresco_jobs_accepted_total"), "accepted"),
               query(per_minute("fresco_idempotent_joins_total"), "joined"),
               query(per_minute("fresco_jobs_cancelled_total"), "cancelled")], must=True),
        panel("Accepted and ended", "Outputs that came and went; what is between the lines is open.", "short",
              [query(per_minute("fresco_outputs_accepted_total"), "accepted"),
               query(per_minute("fresco_outputs_ended_total"), "ended")], must=True),
    ]
    return dashboard("fresco-overview", "Fresco / Overview", "Whether clients get their pictures, and how fast.",
                     [("Now", now), ("Work", work), ("The promise", promise)], [PROMETHEUS])


def pipeline():
    pictures = f"sum(rate(fresco_unattributed_seconds_count{INTERVAL}))"
    share = lambda metric, name: query(
        f"sum by (stage) (rate({metric}_sum{INTERVAL})) / on() group_left() {pictures}", f"{name} {{{{stage}}}}")
    whole = [
        stacked("Where the time goes", "Mean seconds of a finished picture, by stage, as wait and as run. The parts are "
                "the whole; where clocks differ so that they are not, by how much is drawn on top, whichever is more.", "s",
                [share("fresco_stage_wait_seconds", "wait"), share("fresco_stage_run_seconds", "run"),
                 query(mean("fresco_unattributed_seconds"), "unattributed")], must=True, width=16, height=10),
        panel("Nobody's time", "By how much waits and runs miss the whole: clocks that differ between machines. Time that no "
              "stage measures is not here but in the wait for the next one.", "s",
              quantiles("fresco_unattributed_seconds", of=(0.5, 0.99)), height=10),
    ]
    queues = [
        stacked("Waiting", "Messages that no worker has: requests at ar, outputs at denoise.", "short",
                query("max by (stage, class) (fresco_queue_depth)", "{{stage}} {{class}}"), must=True),
        panel("Oldest", "Age of the oldest message that waits, and of what waits in batchers, which have it out of its queue.", "s",
              [query("max by (stage, class) (fresco_queue_oldest_seconds)", "{{stage}} {{class}}"),
               query("max(fresco_ar_oldest_waiting_seconds)", "in batchers")], must=True),
        panel("Forecast", "What an output accepted now waits, at the rate measured lately.", "s",
              query("max by (class) (fresco_queue_eta_seconds)", "{{class}}"), must=True),
        stacked("With workers", "Messages that workers hold.", "short",
                query("max by (stage, class) (fresco_queue_held)", "{{stage}} {{class}}"), must=True),
        panel("Idle workers", "Pull requests that wait at the broker: denoisers with nothing to do, batchers with room.", "short",
              query("max by (stage, class) (fresco_queue_idle_pulls)", "{{stage}} {{class}}"), must=True),
        panel("Wait by stage", "p95 of what finished pictures waited.", "s",
              quantiles("fresco_stage_wait_seconds", by="stage", of=(0.95,)), must=True),
    ]
    ar = [
        panel("Rows in a call", "Outputs in one call of the AR engine; 1 under continuous admission, where each row is a call.",
              "short", [query(mean("fresco_ar_batch_rows"), "mean"), *quantiles("fresco_ar_batch_rows", of=(0.95,))]),
        panel("Fill", "Share of the slots that is taken when a call starts. Low while requests wait and denoisers idle is a "
              "loss.", "percentunit", query(mean("fresco_ar_batch_fill_ratio"), "mean"), must=True),
        panel("Slots", "Outputs on AR engines, that wait in batchers, and that could run at once.", "short",
              [query('sum(fresco_inflight{stage="ar"})', "running"), query("sum(fresco_ar_rows_waiting)", "waiting"),
               query("sum(fresco_ar_slots)", "slots")], must=True),
        panel("Rows", "Outputs through AR engines per minute; those whose prior tokens were stored need none.", "short",
              [query(per_minute("fresco_ar_rows_started_total"), "started"),
               query(per_minute("fresco_ar_rows_finished_total"), "finished"),
               query(per_minute("fresco_ar_rows_failed_total"), "failed"),
               query(per_minute("fresco_ar_rows_withdrawn_total"), "withdrawn"),
               query(per_minute("fresco_ar_engine_calls_total"), "calls")], must=True),
        panel("AR time", "What AR engines took for prior tokens; those that were there already are not among them.", "s",
              quantiles("fresco_stage_run_seconds", where='{stage="ar"}', of=(0.5, 0.95)), must=True),
        panel("Storing", "From prior tokens to a stored denoise message: part of what a picture waits for denoising, and long "
              "where the broker does not take it.", "s", quantiles("fresco_ar_store_seconds", of=(0.5, 0.99)), must=True),
        panel("Prior cache", "Share of the outputs whose prior tokens were there already.", "percentunit",
              query(f"sum(rate(fresco_prior_cache_hits_total{INTERVAL})) / (sum(rate(fresco_prior_cache_hits_total{INTERVAL})) "
                    f"+ sum(rate(fresco_prior_cache_misses_total{INTERVAL})))", "hits")),
        panel("Prior tokens stored", "What the cache takes in.", "binBps",
              query(f"sum(rate(fresco_prior_cache_stored_bytes_total{INTERVAL}))", "bytes")),
        panel("Priors stored", "Outputs whose prior tokens were stored, per minute.", "short",
              query(per_minute("fresco_prior_cache_stored_total"), "stored")),
    ]
    denoise = [
        panel("Step", "One denoising step, over all denoisers.", "s", quantiles("fresco_denoise_step_seconds"), must=True),
        panel("Denoise and decode", "p95 of what finished pictures took on a device, and of decoding and encoding.", "s",
              quantiles("fresco_stage_run_seconds", by="stage", where='{stage=~"denoise|decode"}', of=(0.95,)), must=True),
        panel("Painted", "Pictures stored, outputs that failed, and those that were stopped because they had ended, per minute.",
              "short", [query(per_minute("fresco_outputs_painted_total"), "painted"),
                        query(per_minute("fresco_outputs_failed_total"), "failed"),
                        query(per_minute("fresco_outputs_stopped_total"), "stopped")], must=True),
    ]
    return dashboard("fresco-pipeline", "Fresco / Pipeline", "From the request to the picture, stage by stage.",
                     [("Where the time goes", whole), ("Queues, as the broker has them", queues), ("AR", ar),
                      ("Denoising", denoise)], [PROMETHEUS])


STATES = ["loading", "idle", "busy", "quarantined", "draining"]


def state_number():
    """The state of each process as a number from 1: a timeline shows values, not labels."""
    numbers = (f'fresco_worker_state{{state="{state}"}} * {number}' for number, state in enumerate(STATES, start=1))
    return f"sum by (instance) ({' or '.join(numbers)})"


def workers():
    named = lambda expr: f"{expr} * on (instance) group_left (worker) fresco_worker_info"
    fleet = [
        stacked("Workers by state", "Who shows signs of life at the broker, on the average of what gateways see.", "short",
                query("avg by (role, state) (fresco_workers) > 0", "{{role}} {{state}}"), must=True),
        panel("States", "Each worker over time, from loading its model to draining.", "short",
              query(state_number(), "{{instance}}"), kind="state-timeline", width=16,
              defaults={"mappings": [{"type": "value", "options": {
                  str(number): {"text": state, "index": number} for number, state in enumerate(STATES, start=1)}}]}),
        panel("Busy", "Outputs that run on each worker's engines.", "short",
              query(named("sum by (instance) (fresco_inflight)"), "{{worker}}"), must=True),
        panel("Device busy", "Share of the time that each denoiser's device painted.", "percentunit",
              query(named(f"sum by (instance) (rate(fresco_device_busy_seconds_total{INTERVAL}))"), "{{worker}}"), must=True),
        panel("AR device busy", "Share of the time that the device of each AR-batcher wrote prior tokens; of the native engine "
              "only, for servers over HTTP have devices that nobody here sees.", "percentunit",
              query(named(f"sum by (instance) (rate(fresco_ar_device_busy_seconds_total{INTERVAL}))"), "{{worker}}")),
        panel("Versions", "Processes that answer, by role and version.", "short", query("count by (role, version) (fresco_build_info)", "{{role}} {{version}}",
                                                       format="table", instant=True), kind="table"),
    ]
    devices = [
        panel("Step by worker", "p95 of a denoising step: a straggler is above the others.", "s",
              quantiles("fresco_denoise_step_seconds", by="instance", of=(0.95,)), must=True),
        heatmap("Steps", "All steps of all denoisers.", "s",
                f"sum by (le) (rate(fresco_denoise_step_seconds_bucket{INTERVAL}))", must=True),
        panel("Cancel to free", "From hearing that an output has ended to a device that is free again: a step at most.", "s",
              quantiles("fresco_cancel_to_free_seconds", of=(0.5, 0.95))),
        panel("Memory", "Of each process, in RAM.", "bytes",
              query("fresco_process_resident_memory_bytes", "{{instance}}")),
        panel("Tensors", "Memory of libtorch's tensors on each device, weights included: at the end of each stage of the last "
              "job, and at most during it. Replay and SRT engines have none.", "bytes",
              [query("fresco_libtorch_memory_bytes", "{{instance}} after {{stage}}"),
               query("fresco_libtorch_memory_peak_bytes", "{{instance}} peak of {{stage}}")]),
    ]
    trouble = [
        panel("Failed attempts", "Attempts that failed and left the output to another one, per minute.", "short",
              query(per_minute("fresco_attempts_failed_total", by="instance"), "{{instance}}")),
        panel("Given back", "Outputs given back unfinished, per minute: drains, and brokers that did not answer.", "short",
              query(per_minute("fresco_outputs_given_back_total", by="instance"), "{{instance}}")),
        panel("Starts", "Times a process started in a quarter of an hour, where its port is fixed; elsewhere each start is a new "
              "process.", "short",
              query("max by (instance) (changes(fresco_process_start_time_seconds[15m]))", "{{instance}}")),
        panel("Quarantines", "Times a worker took itself out because its engine failed in a row, in ten minutes.", "short",
              query("sum by (instance) (increase(fresco_quarantines_total[10m]))", "{{instance}}")),
        panel("Answers to scrapes", "1 for a process that answers, 0 for one that does not, and whether it has its broker.",
              "short",
              [query('up{job="fresco", deployment=~"$deployment"}', "{{instance}}"),
               query("fresco_broker_connected", "{{instance}} has its broker")]),
    ]
    return dashboard("fresco-workers", "Fresco / Workers", "Who works, how fast, and who does not.",
                     [("Fleet", fleet), ("Devices", devices), ("Trouble", trouble)], [PROMETHEUS])


def reliability():
    failures = [
        panel("Redeliveries", "Messages that came once more, in five minutes, by stage and by what became of the attempt "
              "before.", "short",
              query("sum by (stage, reason) (increase(fresco_redeliveries_total[5m]))", "{{stage}} {{reason}}"), must=True),
        panel("Dead letters", "Outputs given up that nobody has replayed or dropped: `fresco dead list`.", "short",
              query("max(fresco_dead_letter_depth)", "dead letters"), must=True),
        panel("Oldest dead letter", "For how long nobody has looked.", "s",
              query("max(fresco_dead_letter_oldest_seconds)", "oldest"), must=True),
        panel("Given up", "Outputs that became dead letters, per minute.", "short",
              query(per_minute("fresco_outputs_dead_total"), "outputs")),
        panel("Second results", "Results that were second and dropped: the fence at work.", "short",
              query(per_minute("fresco_results_suppressed_total"), "results")),
        panel("Refused transitions", "Events that could not follow in an output's life.", "short",
              query(per_minute("fresco_transitions_refused_total"), "events")),
    ]
    runtime = [
        panel("Threads that work", "Share of the threads of tokio that run tasks: at 1 a process needs more of them, or blocks "
              "them.", "percentunit",
              query(f"sum by (instance) (rate(fresco_runtime_busy_seconds_total{INTERVAL}))"
                    " / sum by (instance) (fresco_runtime_threads)", "{{instance}}"), must=True),
        panel("Tasks", "Tasks of tokio that are alive: grows for ever where some are forgotten.", "short",
              query("fresco_runtime_tasks", "{{instance}}"), must=True),
        panel("Tasks that wait for a thread", "In the queue that all threads of a process share.", "short",
              query("fresco_runtime_queue_depth", "{{instance}}")),
    ]
    telemetry = [
        panel("Spans sent", "Spans that the collector took, per minute; 0 without one.", "short",
              query(per_minute("fresco_spans_sent_total", by="instance"), "{{instance}}")),
        panel("Spans lost", "Spans that no collector got, per minute: refused by it, or too many for it at once.", "short",
              query(per_minute("fresco_spans_lost_total", by="instance, reason"), "{{instance}} {{reason}}")),
        panel("Pushes of metrics", "To a collector, per minute, by what became of them; 0 without one.", "short",
              query(per_minute("fresco_metric_pushes_total", by="instance, outcome"), "{{instance}} {{outcome}}")),
        panel("Points lost", "Points of metrics that the collector refused of pushes that it took in part, per minute.",
              "short", query(per_minute("fresco_metric_points_lost_total", by="instance"), "{{instance}}")),
    ]
    broker = [
        panel("Held against the cap", "Share of the messages that workers may hold at once; at 1 the broker hands out none.",
              "percentunit",
              query("max by (stage, class) (fresco_queue_held) / max by (stage, class) (fresco_queue_held_max)",
                    "{{stage}} {{class}}"), must=True),
        panel("Delivered more than once", "Messages in the queue that were redelivered.", "short",
              query("max by (stage, class) (fresco_queue_redelivered)", "{{stage}} {{class}}")),
        panel("Messages", "In each stream and bucket.", "short",
              query("max by (stream) (fresco_stream_messages)", "{{stream}}"), must=True),
        panel("Bytes", "In each stream and bucket.", "bytes",
              query("max by (stream) (fresco_stream_bytes)", "{{stream}}"), must=True),
        panel("Fill of streams", "Of what they may hold, in messages and in bytes: the first to be full counts. Results at "
              "80 % of their bytes let no job in.", "percentunit",
              [query("max by (stream) (fresco_stream_messages) / max by (stream) (fresco_stream_max_messages)",
                     "{{stream}}, messages"),
               query("max by (stream) (fresco_stream_bytes) / max by (stream) (fresco_stream_max_bytes)",
                     "{{stream}}, bytes")]),
        panel("Reconnects", "Connections to the broker in five minutes; the first one of a process that starts is one.", "short",
              query("sum by (instance) (increase(fresco_broker_connections_total[5m]))", "{{instance}}")),
        panel("Looks that failed", "Scrapes for which the broker did not say how its queues are.", "short",
              query(per_minute("fresco_broker_looks_failed_total"), "looks")),
    ]
    return dashboard("fresco-reliability", "Fresco / Reliability", "What failed, what was tried again, and how the broker is.",
                     [("Failures", failures), ("Broker", broker), ("Processes", runtime), ("Telemetry", telemetry)], [PROMETHEUS])


def tracing():
    rate = lambda metric, by: f"sum by ({by}) (rate({metric}{INTERVAL}))"
    # A trace is its tenant's by the spans of the request and of the job, by that of the request at an AR-batcher, and by the
    # first one of a dead letter that is replayed. Of one that lost them, what went wrong is to be found all the same: for
    # that nobody's tenant is asked.
    of_tenant = f'{{ {OF_CHOSEN} && span.fresco.tenant =~ "$tenant" }}'
    find = [
        panel("Traces of jobs", "Traces of one job, or of all that took at least so long: choose above. A row opens the trace.",
              "short",
              traceql(of_tenant + ' && { span.fresco.job.id =~ "$job" && duration > $longer }'
                      " | select(span.fresco.job.id, span.fresco.tenant, span.fresco.size, span.fresco.class)"),
              kind="table", width=12),
        # Rows of spans, for no override reaches a table within a table.
        panel("Slow jobs", "Whole jobs, from the gateway that followed them. An id opens the job at the gateway above; where "
              "tenants are told apart that answers to who brings a key.", "short",
              traceql(f'{{ {OF_CHOSEN} && name = "job" && span.fresco.tenant =~ "$tenant" && duration > $longer }}'
                      " | select(span.fresco.job.id, span.fresco.tenant, span.fresco.size, span.fresco.steps)",
                      tableType="spans"),
              kind="table", width=12,
              overrides=[link("fresco.job.id", "The job", "${gateway:raw}/v1/images/jobs/${__value.raw}")]),
        panel("Failures", "Traces with spans that are errors, with what went wrong. A cancelled job is none. Of all tenants.",
              "short", traceql(f"{{ {OF_CHOSEN} && status = error }}"
                               " | select(span.fresco.job.id, span.error.type, resource.service.instance.id)"),
              kind="table", width=12),
        panel("Tried again", "Messages that were delivered more than once, and attempts of workers that nobody heard of again. "
              "Of all tenants.", "short",
              traceql(f'{{ {OF_CHOSEN} && (name = "lost attempt" || span.messaging.nats.delivered_count > 1) }}'
                      " | select(span.fresco.job.id, span.fresco.attempt, span.fresco.worker)"),
              kind="table", width=12),
        panel("Long denoising", "Denoising that took so long, below the attempt that it is of.", "short",
              traceql(of_tenant + ' && ({ name = "process denoise" } >> { name = "denoise" && duration > $longer })'),
              kind="table", width=12),
        heatmap("Jobs by duration", "Of jobs that got their pictures. A point opens the trace of one.", "s",
                f"sum by (le) (rate(fresco_job_duration_seconds_bucket{DONE}{INTERVAL}))", must=True, width=12),
    ]
    one = [
        panel("Trace", "The trace whose id stands above; a click on its bars leads to its log lines and to metrics of its time.",
              "short", traceql("$trace"), kind="traces", width=24, height=16),
        panel("Log lines", "What every process said while it worked on the trace whose id stands above.",
              "short", logql('{service_namespace=~"$namespace"} |= "$trace"'), kind="logs", width=16),
        panel("Warnings and errors", "Log lines that somebody may have to act on, of all traces. Needs logs in JSON.", "short",
              logql('sum by (service_name, level) (count_over_time({service_namespace=~"$namespace"}'
                    ' | json | level =~ "WARN|ERROR" [$__auto]))', "{{service_name}} {{level}}"), width=8),
    ]
    graph = [
        panel("Service graph", "Who sends to whom, as Tempo pairs the spans of a message. Clients and SRT servers are in it ten "
              "minutes late." + OF_ALL, "short",
              traceql("", kind="serviceMap"), kind="nodeGraph", width=12),
        panel("Edges", "Messages and calls per second. Those from clients and to SRT servers, who send no spans, count ten "
              "minutes after they were made, when nobody else's half has come; of requests of this moment Rate tells." + OF_JOBS
              + OF_ALL,
              "reqps",
              query(rate("traces_service_graph_request_total", "client, server"), "{{client}} to {{server}}"), must=True,
              width=6),
        panel("Failed edges", "Those of which either side failed. From clients and to SRT servers ten minutes late; Errors is "
              "not." + OF_JOBS + OF_ALL, "reqps",
              query(rate("traces_service_graph_request_failed_total", "client, server"), "{{client}} to {{server}}"), width=6),
        panel("In the queue", "p95 from sending a message to working on it." + OF_ALL + DIRECT, "s",
              query("histogram_quantile(0.95, " + rate("traces_service_graph_request_messaging_system_seconds_bucket",
                                                        "le, client, server") + ")", "{{client}} to {{server}}"), must=True),
        panel("Half edges", "Share of the edges that found no other half. Each message that came once more is one, each that was "
              "taken out of its queue, and each request of a client with a trace of its own; when nothing of that happens, trace "
              "context is lost somewhere. And share of the halves that found no room to wait in." + OF_ALL + DIRECT,
              "percentunit",
              [query(f"sum(rate({EXPIRED}{INTERVAL})) / sum(rate({EDGES}{INTERVAL}))", "without a partner"),
               query(f"sum(rate({DROPPED}{INTERVAL})) / (sum(rate({DROPPED}{INTERVAL})) + sum(rate({EDGES}{INTERVAL})))",
                     "without room")]),
        panel("Messages without a trace", "What became of them is a trace of its own: 0, but for dead letters that are replayed.",
              "short", query("sum by (instance) (increase(fresco_messages_untraced_total[5m]))", "{{instance}}")),
    ]
    red = [
        panel("Rate", "Spans per second." + OF_ALL, "reqps",
              query(rate("traces_spanmetrics_calls_total", "service, span_name"), "{{service}} {{span_name}}"), must=True),
        panel("Errors", "Spans per second that are errors." + OF_ALL, "reqps",
              query(f'sum by (service, span_name) (rate(traces_spanmetrics_calls_total{{status_code="STATUS_CODE_ERROR"}}{INTERVAL}))',
                    "{{service}} {{span_name}}")),
        panel("Duration", "p95 of each kind of span." + OF_ALL, "s",
              query("histogram_quantile(0.95, " + rate("traces_spanmetrics_latency_bucket", "le, service, span_name") + ")",
                    "{{service}} {{span_name}}", exemplar=True), must=True),
        panel("Denoiser by denoiser", "Median and p95 of an output at each denoiser, from its spans." + DIRECT, "s",
              traceql(f'{{ {OF_CHOSEN} && name = "process denoise" }}'
                      " | quantile_over_time(duration, 0.5, 0.95) by (resource.service.instance.id)"),
              width=24),
    ]
    variables = [PROMETHEUS, variable("tempo", "tempo", "Tempo"), variable("loki", "loki", "Loki"),
                 text_variable("namespace", "Namespace", ".+"), tenant_variable(), text_variable("job", "Job", ".*"),
                 text_variable("gateway", "Gateway", "http://127.0.0.1:8080"),
                 text_variable("longer", "Longer than", "1s"), text_variable("trace", "Trace", "")]
    return dashboard("fresco-tracing", "Fresco / Tracing", "From a slow picture to the span that made it slow.",
                     [("Find", find), ("One trace", one), ("Graph", graph), ("Spans", red)], variables)


def tenants():
    # Nobody's is what came without a key, or everything where clients are not told apart.
    device = f'sum by (tenant) (rate(fresco_tenant_device_seconds_total{{tenant!="none"}}{INTERVAL}))'
    busy = f"({device} > 0)"
    share = [
        stacked("Share of device time", "Of all the time that denoisers painted, by whose the outputs were: what came to nothing "
                "counts, too.", "percentunit",
                query(f"sum by (tenant) (rate(fresco_tenant_device_seconds_total{INTERVAL})) / on() group_left() "
                      f"sum(rate(fresco_tenant_device_seconds_total{INTERVAL}))", "{{tenant}}"), must=True, width=12),
        panel("Fairness", "Jain's index over the device time of tenants that got any: 1 where all got the same, 1/n where one "
              "of n got everything. Low is unfair only where all asked for more.", "percentunit",
              query(f"sum({busy}) ^ 2 / (count({busy}) * sum({busy} ^ 2))", "Jain"), must=True, width=6),
        panel("Open outputs", "Outputs accepted and not ended.", "short",
              query("sum by (tenant) (fresco_tenant_outputs_open)", "{{tenant}}"), must=True, width=6),
    ]
    service = [
        panel("Wait", "p95 of what finished pictures waited for both stages.", "s",
              quantiles("fresco_tenant_queue_wait_seconds", by="tenant", of=(0.95,)), must=True),
        stacked("Images", "Pictures finished per minute.", "short",
                query(per_minute("fresco_tenant_images_total", by="tenant"), "{{tenant}}"), must=True),
        panel("Device seconds per image", "What a tenant's pictures cost: its sizes and steps, and what was painted of others "
              "that failed, were cancelled or came too late.", "s",
              query(f"{device} / sum by (tenant) (rate(fresco_tenant_images_total{INTERVAL}))", "{{tenant}}"), must=True),
        stacked("Jobs by outcome", "Requests that ended per minute.", "short",
                query(per_minute("fresco_tenant_jobs_total", by="tenant, outcome"), "{{tenant}} {{outcome}}"), must=True),
        panel("Rejections", "Requests for pictures refused per minute; those without a good key are nobody's: none.", "short",
              query(per_minute("fresco_tenant_rejections_total", by="tenant"), "{{tenant}}"), must=True),
    ]
    return dashboard("fresco-tenants", "Fresco / Tenants", "Who gets what of the devices, and how long each waits.",
                     [("Share", share), ("Service", service)], [PROMETHEUS])


PROMETHEUS = variable("prometheus", "prometheus", "Prometheus")
DASHBOARDS = {"overview": overview, "pipeline": pipeline, "workers": workers, "reliability": reliability,
              "tenants": tenants, "tracing": tracing}


def written(make):
    return json.dumps(make(), indent=2) + "\n"


def main():
    texts = {FOLDER / f"{name}.json": written(make) for name, make in DASHBOARDS.items()}
    if "--check" not in sys.argv[1:]:
        for file, text in texts.items():
            file.write_text(text)
        return
    there = set(FOLDER.glob("*.json"))
    differing = [file.name for file in there | set(texts) if file not in there or file.read_text() != texts.get(file)]
    if differing:
        sys.exit(f"not as dashboards.py writes them: {', '.join(sorted(differing))}; run it")


if __name__ == "__main__":
    main()
