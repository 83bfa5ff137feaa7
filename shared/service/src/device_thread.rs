//! One operating-system thread that owns a device.
//!
//! A libtorch call may block for minutes; on an executor thread it would block the progress acks that keep the
//! message ours. And one thread touching a device means nothing on it needs a lock.

use std::{sync::mpsc, thread};

use tokio::sync::oneshot;

type Call<E> = Box<dyn FnOnce(&mut E) + Send>;

/// Calls that may wait for the thread: its caller sends one at a time.
const CALLS_WAITING_MAX: usize = 1;

/// The thread is gone: its engine panicked. The process cannot work any more.
#[derive(Debug, thiserror::Error)]
#[error("the device thread has died")]
pub struct DeviceThreadDied;

/// A handle to the thread that owns an engine `E`; the thread ends when the handle is dropped and its call is done.
#[derive(Debug)]
pub struct DeviceThread<E> {
    calls: mpsc::SyncSender<Call<E>>,
}

// Not derived: a handle can be copied although an engine cannot.
impl<E> Clone for DeviceThread<E> {
    fn clone(&self) -> Self {
        Self {
            calls: self.calls.clone(),
        }
    }
}

impl<E: 'static> DeviceThread<E> {
    /// Starts the thread and builds the engine on it; the engine itself never moves to another thread.
    pub async fn start<F, Error>(
        name: &str,
        build: F,
    ) -> Result<Result<Self, Error>, DeviceThreadDied>
    where
        F: FnOnce() -> Result<E, Error> + Send + 'static,
        Error: Send + 'static,
    {
        let (calls, inbox) = mpsc::sync_channel::<Call<E>>(CALLS_WAITING_MAX);
        let (built, outcome) = oneshot::channel();
        let body = move || {
            let mut engine = match build() {
                Ok(engine) => engine,
                Err(error) => return drop(built.send(Err(error))),
            };
            if built.send(Ok(())).is_ok() {
                inbox.into_iter().for_each(|call| call(&mut engine));
            }
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|_| DeviceThreadDied)?;
        let outcome = outcome.await.map_err(|_| DeviceThreadDied)?;
        Ok(outcome.map(|()| Self { calls }))
    }

    /// Starts `work` on the thread, at once and not only when the future is polled, and waits for what it returns.
    /// Dropping the future does not stop the work.
    pub fn call<R, F>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<R, DeviceThreadDied>> + use<R, F, E>
    where
        R: Send + 'static,
        F: FnOnce(&mut E) -> R + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let call: Call<E> = Box::new(move |engine| drop(done.send(work(engine))));
        // A call that is not taken is dropped with its `done`: the same as a thread that died over it.
        drop(self.calls.try_send(call));
        async move { outcome.await.map_err(|_| DeviceThreadDied) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn started(engine: u32) -> DeviceThread<u32> {
        let started = DeviceThread::start("test-device", move || Ok::<_, ()>(engine)).await;
        started
            .expect("the thread lives")
            .expect("the engine builds")
    }

    #[tokio::test]
    async fn calls_run_on_the_one_thread_and_see_its_engine_a78() {
        let device = started(40).await;
        let call = |add: u32| {
            device.call(move |engine| {
                *engine += add;
                (*engine, thread::current().name().map(str::to_owned))
            })
        };
        assert_eq!(
            call(1).await.expect("alive"),
            (41, Some("test-device".into()))
        );
        assert_eq!(
            call(1).await.expect("alive"),
            (42, Some("test-device".into()))
        );
    }

    #[tokio::test]
    async fn a_call_runs_although_nobody_waits_for_it() {
        let device = started(0).await;
        let (ran, seen) = oneshot::channel();
        drop(device.call(move |_| ran.send(())));
        assert!(seen.await.is_ok());
    }

    #[tokio::test]
    async fn an_engine_that_cannot_be_built_says_why() {
        let started = DeviceThread::<u32>::start("test-device", || Err("no device")).await;
        assert_eq!(started.expect("the thread lives").err(), Some("no device"));
    }

    #[tokio::test]
    async fn a_panic_is_told_to_the_caller_and_to_every_later_one() {
        let device = started(0).await;
        assert!(device.call(|_| panic!("engine defect")).await.is_err());
        assert!(device.call(|_| ()).await.is_err());
    }
}
