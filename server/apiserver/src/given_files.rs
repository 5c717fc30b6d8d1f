//! Certificates that others have made, by upstream's flags: with them, or besides what the server makes itself, it is
//! known and believes. The files are read again while the server runs, so certificates are rotated by replacing them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferry_auth::authenticate::RequestHeaderConfig;
use ferry_auth::pki::{PemPair, Pki};
use ferry_auth::tls::ServingCertificate;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::bootstrap::Trust;
use crate::certificates::certified_key;
use crate::run::{StartError, config_error};

/// A certificate and its key.
pub type Pair = (PathBuf, PathBuf);

#[derive(Debug, Clone, Default)]
pub struct GivenFiles {
    /// What the server shows; its own when not given.
    pub serving: Option<Pair>,
    /// Clients with a certificate of these are believed too.
    pub client_ca: Option<PathBuf>,
    /// Front proxies with a certificate of these are believed too.
    pub request_header_ca: Option<PathBuf>,
    pub request_header: RequestHeaderConfig,
    /// Shown to API servers behind this one.
    pub front_proxy_client: Option<Pair>,
    /// Shown to kubelets.
    pub kubelet_client: Option<Pair>,
    /// Kubelets with a certificate of these are believed too.
    pub kubelet_ca: Option<PathBuf>,
}

type Authorities = Vec<CertificateDer<'static>>;

impl GivenFiles {
    pub fn serving(&self, pki: &Pki) -> Result<Arc<ServingCertificate>, StartError> {
        match &self.serving {
            Some(pair) => Ok(Arc::new(ServingCertificate::new(certified_key(&read_pair(pair)?)?))),
            None => Ok(pki.serving()),
        }
    }

    pub fn client_authorities(&self, pki: &Pki) -> Result<Authorities, StartError> {
        with(pki.ca_bundle(), self.client_ca.as_deref())
    }

    pub fn front_proxy_authorities(&self, pki: &Pki) -> Result<Authorities, StartError> {
        with(pki.front_proxy_ca_bundle(), self.request_header_ca.as_deref())
    }

    pub fn kubelet_authorities(&self, pki: &Pki) -> Result<Authorities, StartError> {
        with(pki.ca_bundle(), self.kubelet_ca.as_deref())
    }

    pub fn kubelet_client(&self, pki: &Pki) -> Result<PemPair, StartError> {
        self.kubelet_client.as_ref().map_or_else(|| Ok(pki.kubelet_client()), read_pair)
    }

    pub fn front_proxy_client(&self, pki: &Pki) -> Result<PemPair, StartError> {
        self.front_proxy_client.as_ref().map_or_else(|| Ok(pki.front_proxy_client()), read_pair)
    }

    /// Whom others of the cluster have to believe, as of now.
    pub fn trust(&self, pki: &Pki) -> Result<Trust, StartError> {
        let both = |own: String, given: &Option<PathBuf>| match given {
            Some(path) => Ok::<_, StartError>(own + &read(path)?),
            None => Ok(own),
        };
        Ok(Trust {
            ca_pem: both(pki.ca_pem(), &self.client_ca)?,
            front_proxy_ca_pem: both(pki.front_proxy_ca_pem(), &self.request_header_ca)?,
        })
    }

    /// All that the files hold, to see whether somebody has replaced one.
    pub fn contents(&self) -> Result<Vec<String>, StartError> {
        let pairs = [&self.serving, &self.front_proxy_client, &self.kubelet_client].into_iter().flatten();
        let bundles = [&self.client_ca, &self.request_header_ca, &self.kubelet_ca].into_iter().flatten();
        pairs
            .flat_map(|(certificate, key)| [certificate, key])
            .chain(bundles)
            .map(|path| read(path))
            .collect()
    }
}

fn with(mut own: Authorities, given: Option<&Path>) -> Result<Authorities, StartError> {
    if let Some(path) = given {
        let text = read(path)?;
        let certificates: Authorities = CertificateDer::pem_slice_iter(text.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(config_error)?;
        if certificates.is_empty() {
            return Err(config_error(format!("{} holds no certificate", path.display())));
        }
        own.extend(certificates);
    }
    Ok(own)
}

fn read_pair((certificate, key): &Pair) -> Result<PemPair, StartError> {
    Ok(PemPair { certificate: read(certificate)?, key: read(key)? })
}

fn read(path: &Path) -> Result<String, StartError> {
    std::fs::read_to_string(path).map_err(|source| StartError::Read { path: path.to_owned(), source })
}
