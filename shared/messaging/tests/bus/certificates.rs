//! `infra/nats/certificates.sh`, and what a server's certificate is for between the nodes of a cluster.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    common::free_port,
    secured::{Secrets, certificates},
};

fn openssl(folder: &Path, line: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(folder).args(line.split(' '));
    let output = openssl.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    format!("{said}{}", output.status)
}

/// Whether the certificate is still good then.
fn lives(folder: &Path, certificate: &str, days: u32) -> bool {
    let seconds = days * 86_400;
    let line = format!("x509 -in {certificate} -noout -checkend {seconds}");
    openssl(folder, &line).contains("will not expire")
}

#[test]
fn an_authority_outlives_the_certificates_that_it_signs() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    for name in ["n1", "n2"] {
        let said = certificates(folder, &[name]);
        assert!(said.status.success(), "{said:?}");
        assert!(lives(folder, "server.pem", 824) && !lives(folder, "server.pem", 826));
        assert!(lives(folder, "ca.pem", 4 * 825));
        let verified = openssl(folder, "verify -CAfile ca.pem server.pem");
        assert!(verified.contains("server.pem: OK"), "{verified}");
    }
}

#[test]
fn nothing_is_signed_that_outlives_its_authority() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    assert!(certificates(folder, &["n1"]).status.success());
    let before = fs::read(folder.join("server.pem")).unwrap();
    openssl(
        folder,
        "req -x509 -new -key ca.key -days 824 -subj /CN=old -out ca.pem",
    );
    let refused = certificates(folder, &["n1"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(fs::read(folder.join("server.pem")).unwrap(), before);
}

#[test]
fn a_name_is_one_for_the_resolver_and_an_address_one_of_either_family() {
    let folder = TempDir::new().unwrap();
    let names = ["n1.example.com", "10.0.0.1", "fd00::1"];
    assert!(certificates(folder.path(), &names).status.success());
    let line = "x509 -in server.pem -noout -ext subjectAltName";
    let told = openssl(folder.path(), line);
    for name in [
        "DNS:n1.example.com",
        "IP Address:10.0.0.1",
        "IP Address:FD00:0:0:0:0:0:0:1",
    ] {
        assert!(told.contains(name), "{told}");
    }
}

/// A connection to a route's port, with what it is told there.
struct Caller(Child);

impl Caller {
    fn call(port: u16, ours: &Path, flags: &[&str]) -> Self {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-quiet", "-verify_return_error", "-connect"]);
        openssl.arg(format!("127.0.0.1:{port}"));
        openssl.arg("-CAfile").arg(ours.join("ca.pem")).args(flags);
        // Open as long as the caller lives.
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(openssl.stderr(Stdio::null()).spawn().unwrap())
    }

    fn first_word(&mut self) -> String {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.split(' ').next().unwrap().to_owned()
    }

    /// Until the node hangs up.
    fn everything(&mut self) -> String {
        let mut text = String::new();
        let mut told = self.0.stdout.take().unwrap();
        told.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Between the nodes it is the only credential.
#[test]
fn only_a_certificate_of_the_same_authority_is_let_in_among_the_nodes() {
    let (ours, others) = (Secrets::make(), Secrets::make());
    let routes = [(); 3].map(|()| free_port());
    let _node = ours.node(0, free_port(), &routes);
    let with = |folder: &Path| {
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        [
            "-cert".to_owned(),
            file("server.pem"),
            "-key".to_owned(),
            file("server.key"),
        ]
    };
    let call = |flags: &[String]| {
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Caller::call(routes[0], ours.folder(), &flags)
    };
    assert_eq!(call(&with(ours.folder())).first_word(), "INFO");
    let theirs = call(&with(others.folder())).everything();
    assert_eq!(theirs, "", "to who has another authority");
    assert_eq!(call(&[]).everything(), "", "to who has none");
}
