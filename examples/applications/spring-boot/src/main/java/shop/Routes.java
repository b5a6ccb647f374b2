package shop;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Decision;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.spring.RateLimited;
import jakarta.servlet.http.HttpServletRequest;
import java.nio.charset.StandardCharsets;
import java.security.Principal;
import java.util.Map;
import org.apache.tomcat.util.http.InvalidParameterException;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

@RestController
class Routes {
    /** Stands for your accounts. */
    private static final Map<String, String> PASSWORDS = Map.of("alice", "correct-horse");
    private static final int USER_BYTES_MAX = 100;

    private final Client logins;

    Routes(Client client) {
        // Nobody may guess passwords while the service does not answer.
        logins = client.with(options -> options.onFailure(Client.OnFailure.DENY));
    }

    @PostMapping("/login")
    ResponseEntity<String> login(@RequestParam String user, @RequestParam String password, HttpServletRequest request) {
        if (user.getBytes(StandardCharsets.UTF_8).length > USER_BYTES_MAX) {
            return ResponseEntity.badRequest().body("user: must be at most " + USER_BYTES_MAX + " bytes\n");
        }
        Descriptor route = Descriptor.on("route", "/login");
        Decision decision = logins.decide(route.and("user", user), route.and("address", request.getRemoteAddr()));
        if (!decision.allowed()) {
            return ResponseEntity.status(decision.failed() ? 503 : 429)
                    .headers(headers -> decision.headers().forEach(headers::set))
                    .body("try again later\n");
        }
        return password.equals(PASSWORDS.get(user)) ? ResponseEntity.ok("welcome\n")
                : ResponseEntity.status(401).body("wrong user or password\n");
    }

    /** Otherwise, each of them would be an error in the log. */
    @ExceptionHandler
    ResponseEntity<String> unreadable(InvalidParameterException form) {
        return ResponseEntity.status(form.getErrorCode()).body("the form is unreadable\n");
    }

    @RateLimited("user")
    @GetMapping("/reports")
    String reports(Principal user) {
        return "the reports of " + user.getName() + "\n";
    }

    @GetMapping("/healthz")
    String healthz() {
        return "ok\n";
    }
}
