//! Writes `observability/metrics.md` to the standard output.

#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn main() {
    print!("{}", service::metrics::page::page());
}
