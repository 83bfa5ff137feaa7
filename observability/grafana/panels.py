"""The parts that dashboards are made of. Standard library only.

A panel says what it shows and in which unit; where it lies follows from the order. `must` marks what has to move in
every healthy deployment with work: the scenario test fails when a query of such a panel is constant, as it does when one of
any panel is empty or not a number. What cannot be otherwise there is listed in the test.
"""

import re

PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}
TEMPO = {"type": "tempo", "uid": "${tempo}"}
LOKI = {"type": "loki", "uid": "${loki}"}

# A label of the scrape, where several deployments share a Prometheus; without it Grafana asks for "" and finds all.
DEPLOYMENT = 'deployment=~"$deployment"'
OURS = re.compile(r"\b(fresco_\w+)(?:\{([^}]*)\})?")

# Of a trace in a table. Tempo's default of 3 leaves no room for a span beside the three that name a job's tenant.
SPANS_MAX = 10

# Grafana's grid.
COLUMNS = 24
HEIGHT = 8


def variable(name, kind, label):
    """A data source that whoever opens the dashboard chooses: no uid of ours is right elsewhere."""
    return {"name": name, "type": "datasource", "query": kind, "label": label, "hide": 0, "options": []}


def text_variable(name, label, value):
    """What people type in."""
    return {"name": name, "type": "textbox", "label": label, "query": value, "hide": 0,
            "current": {"text": value, "value": value}, "options": [{"text": value, "value": value, "selected": True}]}


def traceql(query, *, kind="traceql", **more):
    # No filters: those are what the query builder makes a query of.
    return {"datasource": TEMPO, "queryType": kind, "query": query, "filters": [], "limit": 20, "spss": SPANS_MAX,
            "tableType": "traces", **more}


def label_variable(name, label, values, **more):
    """A value that a label has, which whoever opens the dashboard chooses."""
    return {"name": name, "type": "query", "datasource": PROMETHEUS, "label": label, "hide": 0,
            "query": {"query": f"label_values({values})", "refId": name}, "refresh": 2, "sort": 1,
            "includeAll": False, "multi": False, "options": [], **more}


def deployments():
    return label_variable("deployment", "Deployment", "fresco_build_info, deployment")


def tenant_variable():
    """One tenant or all of them; `none` is who has no key, or everybody where clients are not told apart."""
    return label_variable("tenant", "Tenant", f"fresco_tenant_jobs_total{{{DEPLOYMENT}}}, tenant", includeAll=True,
                          allValue=".*", current={"text": "All", "value": "$__all", "selected": True})


def of_deployment(expr):
    """The same of one deployment: each of our metrics is asked for with its label."""
    return OURS.sub(lambda found: f"{found[1]}{{{', '.join(filter(None, [found[2], DEPLOYMENT]))}}}", expr)


def logql(expr, legend=""):
    return {"datasource": LOKI, "expr": expr, "legendFormat": legend, "queryType": "range"}


def query(expr, legend="", **more):
    expr = of_deployment(expr)
    return {"datasource": PROMETHEUS, "expr": expr, "legendFormat": legend, **more}


def panel(title, description, unit, targets, *, kind="timeseries", must=False, width=8, height=HEIGHT, **more):
    targets = [targets] if isinstance(targets, dict) else targets
    targets = [{"refId": chr(ord("A") + i), **target} for i, target in enumerate(targets)]
    defaults = {"unit": unit, **more.pop("defaults", {})}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": targets[0]["datasource"] if targets else PROMETHEUS,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": more.pop("overrides", [])},
        "options": more.pop("options", {}),
        "must": must,
        "width": width,
        "height": height,
        **more,
    }


def link(column, title, url):
    """What a click on a value of this column opens."""
    return {"matcher": {"id": "byName", "options": column},
            "properties": [{"id": "links", "value": [{"title": title, "url": url, "targetBlank": True}]}]}


def stacked(*arguments, **more):
    custom = {"custom": {"stacking": {"mode": "normal"}, "fillOpacity": 60}}
    return panel(*arguments, defaults=custom, **more)


def heatmap(title, description, unit, expr, **more):
    target = query(expr, "{{le}}", format="heatmap", exemplar=True)
    options = {"calculate": False, "yAxis": {"unit": unit}}
    return panel(title, description, unit, target, kind="heatmap", options=options, **more)


def quantiles(metric, by="", where="", of=(0.5, 0.95, 0.99)):
    """Of a histogram, over everything that has it."""
    labels = ", ".join(["le", *([by] if by else [])])
    legend = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return [
        query(f"histogram_quantile({q}, {rate})", f"{legend}p{q * 100:g}", exemplar=True)
        for q in of
    ]


def mean(metric, where="", by=""):
    """Of what was observed lately: not of the whole life of a process."""
    over = f" by ({by})" if by else ""
    total, count = (f"sum{over} (rate({metric}_{part}{where}[$__rate_interval]))" for part in ("sum", "count"))
    return f"{total} / {count}"


def per_minute(metric, by="", where=""):
    over = f" by ({by})" if by else ""
    return f"sum{over} (rate({metric}{where}[$__rate_interval])) * 60"


def dashboard(uid, title, description, rows, variables):
    """`rows` is a list of (title, panels); panels flow from left to right."""
    placed, number, y = [], 0, 0
    for row_title, panels in rows:
        number += 1
        placed.append({"type": "row", "id": number, "title": row_title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})
        y += 1
        x, tallest = 0, 0
        for one in panels:
            number += 1
            width, height = one.pop("width"), one.pop("height")
            if x + width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed.append({"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}, **one})
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["fresco"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*variables, deployments()]},
        # The others, of the same deployment and time.
        "links": [{"type": "dashboards", "title": "Fresco", "tags": ["fresco"], "icon": "external link", "tooltip": "",
                   "asDropdown": True, "keepTime": True, "includeVars": True, "targetBlank": False}],
        "annotations": {"list": []},
        "panels": placed,
    }
