package tollkeeper

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles names PEM files. Fields may be empty.
type TLSFiles struct {
	// CA is the authority of the service's certificate; by default those that the system trusts.
	CA string
	// Cert and Key are the client's certificate and its key, for a service that requires one. They are read again for
	// each connection, so they may be replaced.
	Cert, Key string
	// ServerName is the name in the service's certificate; by default the host of the target.
	ServerName string
}

// LoadTLS reads the files.
func LoadTLS(files TLSFiles) (*tls.Config, error) {
	config := &tls.Config{ServerName: files.ServerName, MinVersion: tls.VersionTLS12}
	if files.CA != "" {
		pem, err := os.ReadFile(files.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s has no certificate in PEM form", files.CA)
		}
	}
	if (files.Cert == "") != (files.Key == "") {
		return nil, fmt.Errorf("cert, key: must be given together")
	}
	if files.Cert != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
			return &pair, err
		}
		if _, err := load(nil); err != nil {
			return nil, fmt.Errorf("cert, key: %w", err)
		}
		config.GetClientCertificate = load
	}
	return config, nil
}
