// What Grafana takes, by the types that it publishes: a name for each piece that schema.rs takes dashboards and data
// sources apart into. Set-up links the packages as .fresco/schema.

import type * as grafana from '@grafana/schema';
import type * as heatmap from 'packages/panels/heatmap';
import type * as logs from 'packages/panels/logs';
import type * as nodegraph from 'packages/panels/nodegraph';
import type * as stat from 'packages/panels/stat';
import type * as statetimeline from 'packages/panels/statetimeline';
import type * as table from 'packages/panels/table';
import type * as timeseries from 'packages/panels/timeseries';
import type * as prometheus from 'packages/prometheus/types';
// From the last version of the package that has them.
import type * as loki from 'packages/queries/loki';
import type * as tempo from 'packages/queries/tempo';
import type { NodeGraphData } from 'packages/links/NodeGraph';
import type { SpanBarOptionsData } from 'packages/links/SpanBar';
import type { TraceToLogsData } from 'packages/links/TraceToLogs';
import type { TraceToMetricsData } from 'packages/links/TraceToMetrics';

type IsAny<T> = 0 extends 1 & T ? true : false;

// As JSON has it, which knows no enums. Where the packages say `any`, or lack a file that a type comes from, nothing fits:
// better than that everything does.
type Written<T> =
  IsAny<T> extends true ? never
  : unknown extends T ? unknown
  : T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer E> ? Array<Written<E>>
  : { [K in keyof T]: Written<T[K]> };

// The same where Grafana fills in what is left out: the options of a panel and of its fields.
type Filled<T> = T extends object ? { [K in keyof T]?: T[K] extends unknown[] ? T[K] : Filled<T[K]> } : T;

type But<T, Changed> = Omit<T, keyof Changed> & Changed;

type Nothing = Record<string, never>;

// What the package leaves open, as far as we have it: links of a column.
type Override = {
  matcher: { id: 'byName'; options: string };
  properties: Array<{ id: 'links'; value: Array<{ title: string; url: string; targetBlank?: boolean }> }>;
};

type Panel<Options, Custom = Nothing> = But<Omit<Written<grafana.Panel>, 'targets'>, {
  options: Filled<Written<Options>>;
  fieldConfig: But<Written<grafana.FieldConfigSource>, {
    defaults: But<Written<grafana.FieldConfig>, { custom?: Filled<Written<Custom>> }>;
    overrides: Override[];
  }>;
}>;

// What the plugins of Tempo and Loki keep to themselves, in our own words.
type ServiceMap = { serviceMap?: { datasourceUid?: string } };
type DerivedField = { name: string; matcherRegex: string; url?: string; urlDisplayLabel?: string; datasourceUid?: string };

export type Shapes = {
  dashboard: But<Omit<Written<grafana.Dashboard>, 'panels'>, {
    templating: { list: Array<But<Written<grafana.VariableModel>, { query?: string }>> };
  }>;
  'panel row': But<Written<grafana.RowPanel>, { panels: [] }>;
  'panel heatmap': Panel<heatmap.Options, heatmap.FieldConfig>;
  'panel logs': Panel<logs.Options>;
  'panel nodeGraph': Panel<nodegraph.Options>;
  'panel stat': Panel<stat.Options>;
  'panel state-timeline': Panel<statetimeline.Options, statetimeline.FieldConfig>;
  'panel table': Panel<table.Options, table.FieldConfig>;
  'panel timeseries': Panel<timeseries.Options, timeseries.FieldConfig>;
  // It has no options that Grafana publishes.
  'panel traces': Panel<Nothing>;
  'query prometheus': Written<prometheus.PromQuery>;
  'query tempo': But<Written<tempo.TempoQuery>, { queryType: tempo.TempoQueryType }>;
  'query loki': But<Written<loki.LokiDataQuery>, { queryType: Written<loki.LokiQueryType> }>;
  'values prometheus': prometheus.StandardPromVariableQuery;
  'data source prometheus': Written<prometheus.PromOptions>;
  'data source tempo': Written<NodeGraphData & SpanBarOptionsData & TraceToLogsData & TraceToMetricsData & ServiceMap>;
  'data source loki': { derivedFields?: DerivedField[] };
};
