//! Every query to Tempo and Loki that we ship: where it stands, how Grafana fills its variables in, whether the field's
//! grammar takes it, and what it finds.

mod collect;
pub mod grammar;
pub mod logql;
pub mod traceql;

pub use self::collect::{Asked, Filled, data_sources, links_to_metrics, shipped};
