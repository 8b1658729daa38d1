package cpukit;

import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import sun.misc.Signal;

/**
 * What TorchServe 0.12 cannot do: take its inference token from a file, and finish its work before it ends.
 *
 * <p>Given to the JVM as -javaagent:agent.jar=token=FILE,drain_s=SECONDS; both parts are optional.
 */
public final class Agent {
    private Agent() {}

    /** Runs before TorchServe's main. */
    public static void premain(String arguments) {
        Map<String, String> given = parse(arguments);
        if (given.containsKey("drain_s")) {
            Duration limit = Duration.ofSeconds(Long.parseLong(given.get("drain_s")));
            Signal.handle(new Signal("TERM"), signal -> startEnd(limit));
        }
        if (given.containsKey("token")) {
            startDaemon("cpukit-token", () -> Token.replace(Path.of(given.get("token"))));
        }
    }

    private static Map<String, String> parse(String arguments) {
        Map<String, String> given = new HashMap<>();
        for (String pair : arguments == null ? new String[0] : arguments.split(",")) {
            String[] parts = pair.split("=", 2);
            given.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        return given;
    }

    /** Not in the signal's own thread: the JVM has one for all signals. */
    private static void startEnd(Duration limit) {
        startDaemon(
                "cpukit-drain",
                () -> {
                    try {
                        Drain.run(limit);
                    } finally {
                        System.exit(0);
                    }
                });
    }

    private static void startDaemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }
}
