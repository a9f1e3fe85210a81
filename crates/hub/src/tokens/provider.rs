//! Signatures of tokens by ring, the cryptography that TLS brings anyway.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature as ring_signature;
use ring::signature::{EcdsaKeyPair, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the one that the token library asks. Harmless where somebody else did.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let known = rsa(*algorithm).is_some()
        || matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA);
    if !known || key.family() == jsonwebtoken::AlgorithmFamily::Hmac {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.kind().clone() }))
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&ring_signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let plain = |algorithm: &'static dyn ring_signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signature)
        };
        let verified = match (&self.key, self.algorithm) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, algorithm) => match rsa(algorithm) {
                Some(parameters) => {
                    RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
                }
                None => return Err(Error::new()),
            },
            (DecodingKeyKind::SecretOrDer(key), Algorithm::ES256) => {
                plain(&ring_signature::ECDSA_P256_SHA256_FIXED, key)
            }
            (DecodingKeyKind::SecretOrDer(key), Algorithm::ES384) => {
                plain(&ring_signature::ECDSA_P384_SHA384_FIXED, key)
            }
            (DecodingKeyKind::SecretOrDer(key), Algorithm::EdDSA) => {
                plain(&ring_signature::ED25519, key)
            }
            _ => return Err(Error::new()),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Only what the development issuer needs.
struct RingSigner(EcdsaKeyPair);

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    if *algorithm != Algorithm::ES256 {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let signing = &ring_signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let pair = EcdsaKeyPair::from_pkcs8(signing, key.as_bytes(), &SystemRandom::new());
    let pair = pair.map_err(|_| ErrorKind::InvalidEcdsaKey)?;
    Ok(Box::new(RingSigner(pair)))
}

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let signature = self.0.sign(&SystemRandom::new(), message).map_err(|_| Error::new())?;
        Ok(signature.as_ref().to_vec())
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}
