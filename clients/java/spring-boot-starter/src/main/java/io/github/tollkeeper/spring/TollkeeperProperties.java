package io.github.tollkeeper.spring;

import java.io.File;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;
import org.springframework.core.Ordered;

/**
 * The properties below {@code tollkeeper}.
 *
 * @param address of the service, such as {@code localhost:8081}; required unless the application has a client of its own
 * @param domain of the rules
 * @param timeout how long a decision waits for the service
 * @param commitTimeout how long a commit is repeated until it is answered
 * @param onFailure the decision about calls that the service does not answer
 * @param requireLimit whether a call that meets no limit is an error, for tests and staging
 * @param rememberDenials how long a denial is given again without a request; 0 asks each time
 * @param warmUp how long the start of the application waits for the service; 0 does not wait
 * @param filterOrder order of the filter; by default behind all others
 */
@ConfigurationProperties("tollkeeper")
record TollkeeperProperties(String address, String domain, @DefaultValue("50ms") Duration timeout,
        @DefaultValue("2s") Duration commitTimeout, @DefaultValue("allow") Failure onFailure,
        @DefaultValue("false") boolean requireLimit, @DefaultValue("0s") Duration rememberDenials,
        @DefaultValue("5s") Duration warmUp, @DefaultValue("" + Ordered.LOWEST_PRECEDENCE) int filterOrder,
        @DefaultValue Tls tls) {
    enum Failure { ALLOW, DENY }

    /**
     * PEM files.
     *
     * @param enabled encrypts the connections, also without files
     * @param ca the CA of the service's certificate; by default the CAs that Java trusts
     * @param cert the certificate of the client, for a service that requires one
     * @param key of the certificate
     * @param serverName the name in the service's certificate, if it is not the one of the address
     */
    record Tls(boolean enabled, File ca, File cert, File key, String serverName) {
        Tls {
            if ((cert == null) != (key == null)) {
                throw new IllegalArgumentException("tollkeeper.tls: cert and key must be given together");
            }
        }

        boolean isUsed() {
            return enabled || ca != null || cert != null;
        }
    }
}
