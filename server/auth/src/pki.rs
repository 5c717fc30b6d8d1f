//! The cluster's keys and certificates: created at the first start, and renewed.
//!
//! | file | what it is for |
//! | --- | --- |
//! | `ca` | signs every client and serving certificate of the cluster |
//! | `front-proxy-ca`, `front-proxy-client` | prove to extension API servers that a forwarded user comes from us |
//! | `apiserver` | what clients see; renewed when the host's names change |
//! | `apiserver-kubelet-client` | what kubelets see when the API server calls them |
//! | `sa` | signs service account tokens |
//!
//! Keys are ECDSA P-256: made in well under a millisecond and accepted everywhere.

mod new_files;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use ferry_api::private_key;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

pub use self::new_files::NewFiles;
use crate::{
    certificate::{CertificateFacts, read_certificate},
    kubeconfig::{Kubeconfig, KubeconfigCredentials},
    tls::ServingCertificate,
    user::MASTERS,
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const CA_VALIDITY: Duration = YEAR.saturating_mul(10);
/// Clocks in a cluster differ a little; a certificate just made must be valid on all of them.
const BACKDATE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct PkiConfig {
    /// Names and addresses the API server is reached by.
    pub names: BTreeSet<String>,
    /// The cluster's name in the kubeconfigs that are handed out.
    pub cluster: String,
    pub ca_validity: Duration,
    pub leaf_validity: Duration,
}

impl PkiConfig {
    /// The names every API server has (`kubernetes.default.svc…`, localhost) and those given.
    pub fn new<S: Into<String>>(cluster_domain: &str, names: impl IntoIterator<Item = S>) -> Self {
        let service = format!("kubernetes.default.svc.{cluster_domain}");
        let always = [
            "localhost",
            "127.0.0.1",
            "::1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            &service,
        ];
        let names = always.into_iter().map(str::to_owned).chain(names.into_iter().map(Into::into)).collect();
        PkiConfig { names, cluster: "ferry".to_owned(), ca_validity: CA_VALIDITY, leaf_validity: YEAR }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is malformed: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("signing a certificate for {subject}: {source}")]
    Sign { subject: String, source: rcgen::Error },
    #[error("a certificate for {subject} can name at most two groups")]
    TooManyGroups { subject: String },
}

/// What all servers of a cluster have in common: the authorities and the key of service accounts.
pub const SHARED_FILES: [&str; 6] =
    ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub"];

/// Makes the shared files in `directory`, as far as they are missing, for a cluster whose servers get them from
/// elsewhere.
pub fn found(directory: &Path) -> Result<(), PkiError> {
    let now = SystemTime::now();
    let mut new = NewFiles::default();
    Authority::open_or_create(directory, "ca", "kubernetes", CA_VALIDITY, now, &mut new)?;
    Authority::open_or_create(directory, "front-proxy-ca", "front-proxy-ca", CA_VALIDITY, now, &mut new)?;
    open_or_create_key(directory, "sa", &mut new)?;
    new.write()
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct PemPair {
    pub certificate: String,
    pub key: String,
}

/// The directory with all keys, opened.
pub struct Pki {
    directory: PathBuf,
    config: RwLock<PkiConfig>,
    ca: RwLock<Arc<Authority>>,
    front_proxy_ca: RwLock<Arc<Authority>>,
    serving: Arc<ServingCertificate>,
    kubelet_client: RwLock<PemPair>,
    front_proxy_client: RwLock<PemPair>,
    service_account_key: String,
    service_account_public_key: String,
}

/// What a call to [`Pki::renew`] made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    Ca,
    FrontProxyCa,
    Serving,
    KubeletClient,
    FrontProxyClient,
}

impl Pki {
    /// Opens `directory`, making whatever is missing, has run out, or no longer fits the host.
    /// Never replaces an authority or the service account key: everything else hangs on them.
    pub fn open_or_create(directory: impl Into<PathBuf>, config: PkiConfig) -> Result<Self, PkiError> {
        Pki::open_or_create_at(directory, config, SystemTime::now())
    }

    pub fn open_or_create_at(
        directory: impl Into<PathBuf>,
        config: PkiConfig,
        now: SystemTime,
    ) -> Result<Self, PkiError> {
        let (pki, new) = Pki::open_at(directory, config, now)?;
        new.write()?;
        Ok(pki)
    }

    /// The same, but what had to be made is still to be written: nothing that hangs on it may be promised before.
    pub fn open(directory: impl Into<PathBuf>, config: PkiConfig) -> Result<(Self, NewFiles), PkiError> {
        Pki::open_at(directory, config, SystemTime::now())
    }

    fn open_at(
        directory: impl Into<PathBuf>,
        config: PkiConfig,
        now: SystemTime,
    ) -> Result<(Self, NewFiles), PkiError> {
        let _span = ferry_trace::span("auth.pki");
        let directory = directory.into();
        create_directory(&directory)?;
        let mut new = NewFiles::default();
        let validity = config.ca_validity;
        let ca = Authority::open_or_create(&directory, "ca", "kubernetes", validity, now, &mut new)?;
        let front_proxy = "front-proxy-ca";
        let front_proxy_ca =
            Authority::open_or_create(&directory, front_proxy, front_proxy, validity, now, &mut new)?;
        let mut files = Files { directory: &directory, validity: config.leaf_validity, now, new };
        let (serving, _) = files.leaf(&ca, &Leaf::serving(&config.names))?;
        let (kubelet_client, _) = files.leaf(&ca, &Leaf::kubelet_client())?;
        let (front_proxy_client, _) = files.leaf(&front_proxy_ca, &Leaf::front_proxy_client())?;
        let mut new = files.new;
        let (service_account_key, service_account_public_key) =
            open_or_create_key(&directory, "sa", &mut new)?;
        let serving = certified_key(&serving, &directory.join("apiserver.crt"))?;
        let pki = Pki {
            config: RwLock::new(config),
            ca: RwLock::new(Arc::new(ca)),
            front_proxy_ca: RwLock::new(Arc::new(front_proxy_ca)),
            serving: Arc::new(ServingCertificate::new(serving)),
            kubelet_client: RwLock::new(kubelet_client),
            front_proxy_client: RwLock::new(front_proxy_client),
            service_account_key,
            service_account_public_key,
            directory,
        };
        Ok((pki, new))
    }

    /// Renews what has used up two thirds of its life, and the serving certificate also when the
    /// names the server is reached by have changed. Takes effect at once. Call it every few
    /// minutes and whenever an address of the host changes.
    pub fn renew(&self, names: BTreeSet<String>, now: SystemTime) -> Result<Vec<Renewed>, PkiError> {
        let config = {
            let mut config = self.config.write();
            config.names = names;
            config.clone()
        };
        let mut renewed = Vec::new();
        let mut files = Files {
            directory: &self.directory,
            validity: config.leaf_validity,
            now,
            new: NewFiles::default(),
        };
        for (slot, what) in [(&self.ca, Renewed::Ca), (&self.front_proxy_ca, Renewed::FrontProxyCa)] {
            let authority = slot.read().clone();
            if let Some(fresh) =
                authority.renewed(&self.directory, config.ca_validity, now, &mut files.new)?
            {
                files.write()?;
                *slot.write() = Arc::new(fresh);
                renewed.push(what);
            }
        }
        let ca = self.ca.read().clone();
        if let (pair, true) = files.leaf(&ca, &Leaf::serving(&config.names))? {
            files.write()?;
            self.serving.replace(certified_key(&pair, &self.directory.join("apiserver.crt"))?);
            renewed.push(Renewed::Serving);
        }
        if let (pair, true) = files.leaf(&ca, &Leaf::kubelet_client())? {
            files.write()?;
            *self.kubelet_client.write() = pair;
            renewed.push(Renewed::KubeletClient);
        }
        let front_proxy_ca = self.front_proxy_ca.read().clone();
        if let (pair, true) = files.leaf(&front_proxy_ca, &Leaf::front_proxy_client())? {
            files.write()?;
            *self.front_proxy_client.write() = pair;
            renewed.push(Renewed::FrontProxyClient);
        }
        Ok(renewed)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Names and addresses the API server is reached by, as its certificate holds them.
    pub fn names(&self) -> BTreeSet<String> {
        self.config.read().names.clone()
    }

    /// Hand this to rustls as certificate resolver; renewals reach it by themselves.
    pub fn serving(&self) -> Arc<ServingCertificate> {
        self.serving.clone()
    }

    /// The authorities that sign the cluster's certificates: the current one first, and while
    /// certificates of an earlier generation may be about, that one too.
    pub fn ca_bundle(&self) -> Vec<CertificateDer<'static>> {
        self.ca.read().bundle.clone()
    }

    pub fn ca_pem(&self) -> String {
        self.ca.read().pem.clone()
    }

    pub fn front_proxy_ca_bundle(&self) -> Vec<CertificateDer<'static>> {
        self.front_proxy_ca.read().bundle.clone()
    }

    pub fn front_proxy_ca_pem(&self) -> String {
        self.front_proxy_ca.read().pem.clone()
    }

    /// The CA's certificate and key files, for the controller that signs certificate requests.
    pub fn ca_files(&self) -> (PathBuf, PathBuf) {
        (self.directory.join("ca.crt"), self.directory.join("ca.key"))
    }

    pub fn kubelet_client(&self) -> PemPair {
        self.kubelet_client.read().clone()
    }

    pub fn front_proxy_client(&self) -> PemPair {
        self.front_proxy_client.read().clone()
    }

    /// PKCS#8, PEM.
    pub fn service_account_key(&self) -> &str {
        &self.service_account_key
    }

    pub fn service_account_public_key(&self) -> &str {
        &self.service_account_public_key
    }

    /// A certificate that makes its holder `user`, member of `groups`.
    pub fn client_certificate(
        &self,
        user: &str,
        groups: &[&str],
        now: SystemTime,
    ) -> Result<PemPair, PkiError> {
        let leaf = Leaf { groups, usage: ExtendedKeyUsagePurpose::ClientAuth, ..Leaf::new("", user) };
        self.ca.read().issue(&leaf, self.config.read().leaf_validity, now)
    }

    /// A serving certificate for a component other than the API server, such as a kubelet.
    pub fn serving_certificate(
        &self,
        common_name: &str,
        groups: &[&str],
        names: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<PemPair, PkiError> {
        let leaf = Leaf { groups, names: Some(names), ..Leaf::new("", common_name) };
        self.ca.read().issue(&leaf, self.config.read().leaf_validity, now)
    }

    /// The administrator's kubeconfig: a member of `system:masters`, whom no policy can lock out.
    pub fn admin_kubeconfig(&self, server: &str) -> Result<String, PkiError> {
        self.client_kubeconfig("kubernetes-admin", &[MASTERS], server)
    }

    pub fn client_kubeconfig(&self, user: &str, groups: &[&str], server: &str) -> Result<String, PkiError> {
        let pair = self.client_certificate(user, groups, SystemTime::now())?;
        let cluster = self.config.read().cluster.clone();
        let kubeconfig = Kubeconfig {
            cluster: &cluster,
            server,
            ca_pem: &self.ca_pem(),
            user,
            credentials: KubeconfigCredentials::Certificate {
                certificate_pem: &pair.certificate,
                key_pem: &pair.key,
            },
        };
        Ok(kubeconfig.to_yaml())
    }
}

/// A certificate authority with its key.
struct Authority {
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    bundle: Vec<CertificateDer<'static>>,
    facts: CertificateFacts,
}

impl Authority {
    fn open_or_create(
        directory: &Path,
        name: &'static str,
        common_name: &str,
        validity: Duration,
        now: SystemTime,
        new: &mut NewFiles,
    ) -> Result<Self, PkiError> {
        let (certificate_path, key_path) = paths(directory, name);
        let key_pem = match read_optional(&key_path)? {
            Some(pem) => pem,
            None if certificate_path.exists() => {
                let source =
                    io::Error::new(io::ErrorKind::NotFound, "the certificate is there but its key is not");
                return Err(PkiError::File { action: "reading", path: key_path, source });
            }
            None => {
                let pem = generate_key(common_name)?;
                new.add(&key_path, &pem);
                pem
            }
        };
        let key = parse_key(&key_pem, &key_path)?;
        let pem = match read_optional(&certificate_path)? {
            Some(pem) => pem,
            None => {
                let pem = self_sign(common_name, &key, validity, now)?;
                new.add(&certificate_path, &pem);
                pem
            }
        };
        let authority = Authority::parse(name, pem, key, &certificate_path)?;
        Ok(authority.renewed(directory, validity, now, new)?.unwrap_or(authority))
    }

    fn parse(name: &'static str, pem: String, key: KeyPair, path: &Path) -> Result<Self, PkiError> {
        let bundle = parse_certificates(&pem, path)?;
        let malformed = |reason: String| PkiError::Malformed { path: path.to_owned(), reason };
        let first = bundle.first().ok_or_else(|| malformed("no certificate".to_owned()))?;
        let facts = read_certificate(first).map_err(|error| malformed(error.to_string()))?;
        let issuer = Issuer::from_ca_cert_der(first, key).map_err(|error| malformed(error.to_string()))?;
        Ok(Authority { name, issuer, pem, bundle, facts })
    }

    /// The same authority (name and key) with a certificate that lasts longer, if it is time. The
    /// old certificate stays in the bundle until it has run out: both verify the same leaves.
    fn renewed(
        &self,
        directory: &Path,
        validity: Duration,
        now: SystemTime,
        new: &mut NewFiles,
    ) -> Result<Option<Self>, PkiError> {
        if !is_due(&self.facts, now) {
            return Ok(None);
        }
        let (certificate_path, key_path) = paths(directory, self.name);
        let key = parse_key(&self.issuer.key().serialize_pem(), &key_path)?;
        let mut pem = self_sign(&self.facts.common_name, &key, validity, now)?;
        if self.facts.not_after > now {
            pem.push_str(&self.pem);
        }
        new.add(&certificate_path, &pem);
        Authority::parse(self.name, pem, key, &certificate_path).map(Some)
    }

    fn issue(&self, leaf: &Leaf<'_>, validity: Duration, now: SystemTime) -> Result<PemPair, PkiError> {
        let sign = |source| PkiError::Sign { subject: leaf.common_name.to_owned(), source };
        let key = KeyPair::generate().map_err(sign)?;
        let names: Vec<String> = leaf.names.into_iter().flatten().cloned().collect();
        let mut params = CertificateParams::new(names).map_err(sign)?;
        params.distinguished_name = subject(leaf.common_name, leaf.groups)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![leaf.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - BACKDATE).into();
        // A leaf that outlives its authority would fail without saying so.
        params.not_after = (now + validity).min(self.facts.not_after).into();
        let certificate = params.signed_by(&key, &self.issuer).map_err(sign)?;
        Ok(PemPair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn self_sign(
    common_name: &str,
    key: &KeyPair,
    validity: Duration,
    now: SystemTime,
) -> Result<String, PkiError> {
    let sign = |source| PkiError::Sign { subject: common_name.to_owned(), source };
    let mut params = CertificateParams::new(Vec::new()).map_err(sign)?;
    params.distinguished_name = subject(common_name, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + validity).into();
    Ok(params.self_signed(key).map_err(sign)?.pem())
}

fn subject(common_name: &str, groups: &[&str]) -> Result<DistinguishedName, PkiError> {
    let mut name = DistinguishedName::new();
    // rcgen keeps one value per attribute type; the second spelling of "organization" makes two.
    let spellings = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if groups.len() > spellings.len() {
        return Err(PkiError::TooManyGroups { subject: common_name.to_owned() });
    }
    for (group, spelling) in groups.iter().zip(spellings) {
        name.push(spelling, *group);
    }
    name.push(DnType::CommonName, common_name);
    Ok(name)
}

/// A certificate below an authority.
struct Leaf<'a> {
    file: &'static str,
    common_name: &'a str,
    groups: &'a [&'a str],
    usage: ExtendedKeyUsagePurpose,
    names: Option<&'a BTreeSet<String>>,
}

impl<'a> Leaf<'a> {
    fn new(file: &'static str, common_name: &'a str) -> Self {
        Leaf { file, common_name, groups: &[], usage: ExtendedKeyUsagePurpose::ServerAuth, names: None }
    }

    fn serving(names: &'a BTreeSet<String>) -> Self {
        Leaf { names: Some(names), ..Leaf::new("apiserver", "kube-apiserver") }
    }

    fn kubelet_client() -> Self {
        Leaf {
            groups: &[MASTERS],
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            ..Leaf::new("apiserver-kubelet-client", "kube-apiserver-kubelet-client")
        }
    }

    fn front_proxy_client() -> Self {
        Leaf {
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            ..Leaf::new("front-proxy-client", "front-proxy-client")
        }
    }
}

struct Files<'a> {
    directory: &'a Path,
    validity: Duration,
    now: SystemTime,
    new: NewFiles,
}

impl Files<'_> {
    fn write(&mut self) -> Result<(), PkiError> {
        std::mem::take(&mut self.new).write()
    }

    /// The certificate on disk if it is still good, else a new one, and whether it is new.
    fn leaf(&mut self, authority: &Authority, leaf: &Leaf<'_>) -> Result<(PemPair, bool), PkiError> {
        let (certificate_path, key_path) = paths(self.directory, leaf.file);
        if let (Some(certificate), Some(key)) = (read_optional(&certificate_path)?, read_optional(&key_path)?)
            && is_still_good(&certificate, leaf, self.now)
        {
            return Ok((PemPair { certificate, key }, false));
        }
        let pair = authority.issue(leaf, self.validity, self.now)?;
        self.new.add(&key_path, &pair.key);
        self.new.add(&certificate_path, &pair.certificate);
        Ok((pair, true))
    }
}

fn is_still_good(pem: &str, leaf: &Leaf<'_>, now: SystemTime) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    let Ok(facts) = read_certificate(&der) else { return false };
    let names_fit = leaf.names.is_none_or(|names| *names == facts.subject_alternative_names);
    names_fit && !is_due(&facts, now)
}

/// Whether it is time to replace the certificate, the first of the text; one that cannot be read is of no use.
pub fn is_pem_due(pem: &str, now: SystemTime) -> bool {
    let facts =
        CertificateDer::from_pem_slice(pem.as_bytes()).ok().and_then(|der| read_certificate(&der).ok());
    facts.is_none_or(|facts| is_due(&facts, now))
}

/// Two thirds of its life are over, or the clock says it has not begun.
fn is_due(facts: &CertificateFacts, now: SystemTime) -> bool {
    let life = facts.not_after.duration_since(facts.not_before).unwrap_or(Duration::ZERO);
    let left = facts.not_after.duration_since(now).unwrap_or(Duration::ZERO);
    left < life / 3 || now < facts.not_before
}

fn paths(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
}

fn open_or_create_key(
    directory: &Path,
    name: &str,
    new: &mut NewFiles,
) -> Result<(String, String), PkiError> {
    let (private_path, public_path) =
        (directory.join(format!("{name}.key")), directory.join(format!("{name}.pub")));
    let private = match read_optional(&private_path)? {
        Some(pem) => pem,
        None => {
            let pem = generate_key(name)?;
            new.add(&private_path, &pem);
            pem
        }
    };
    let public = parse_key(&private, &private_path)?.public_key_pem();
    if read_optional(&public_path)?.as_ref() != Some(&public) {
        new.add(&public_path, &public);
    }
    Ok((private, public))
}

fn generate_key(subject: &str) -> Result<String, PkiError> {
    let key = KeyPair::generate().map_err(|source| PkiError::Sign { subject: subject.to_owned(), source })?;
    Ok(key.serialize_pem())
}

fn parse_key(pem: &str, path: &Path) -> Result<KeyPair, PkiError> {
    let malformed = |reason: String| PkiError::Malformed { path: path.to_owned(), reason };
    let key = private_key::pkcs8(pem.as_bytes()).map_err(|error| malformed(error.to_string()))?;
    KeyPair::try_from(&key).map_err(|error| malformed(error.to_string()))
}

fn parse_certificates(pem: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    certificates.map_err(|error| PkiError::Malformed { path: path.to_owned(), reason: error.to_string() })
}

fn certified_key(pair: &PemPair, path: &Path) -> Result<CertifiedKey, PkiError> {
    let malformed = |reason: String| PkiError::Malformed { path: path.to_owned(), reason };
    let chain = parse_certificates(&pair.certificate, path)?;
    let key =
        PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|error| malformed(error.to_string()))?;
    let key =
        rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| malformed(error.to_string()))?;
    Ok(CertifiedKey::new(chain, key))
}

fn create_directory(path: &Path) -> Result<(), PkiError> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o700).create(path);
    created.map_err(|source| PkiError::File { action: "creating", path: path.to_owned(), source })
}

fn read_optional(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { action: "reading", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests;
