package cpukit;

import java.lang.instrument.Instrumentation;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import sun.misc.Signal;

/**
 * What TorchServe 0.12 cannot do: refuse a request before it takes memory, take its inference token from a
 * file, and finish its work before it ends.
 *
 * <p>Given to the JVM as -javaagent:cpukit-agent.jar=body_bytes=N,connections=N,drain_s=N[,token=FILE], all
 * from the plan (config/rules/java.py).
 */
public final class Agent {
    /** An 8 MB picture over 16 Mbit/s takes 4 s. */
    private static final Duration SLOW = Duration.ofSeconds(5);

    private static Gatehouse gatehouse;

    private Agent() {}

    /** Runs before TorchServe's main; without its numbers the server must not start. */
    public static void premain(String arguments, Instrumentation instrumentation) {
        Map<String, String> given = parse(arguments);
        gatehouse = new Gatehouse(number(given, "body_bytes"), (int) number(given, "connections"), SLOW);
        instrumentation.addTransformer(new Replacement());
        Duration limit = Duration.ofSeconds(number(given, "drain_s"));
        Signal.handle(new Signal("TERM"), signal -> startEnd(limit));
        if (given.containsKey("token")) {
            startDaemon("cpukit-token", () -> Token.replace(Path.of(given.get("token"))));
        }
    }

    /** What all connections share; for the initializer, which TorchServe makes itself. */
    public static Gatehouse gatehouse() {
        return gatehouse;
    }

    private static Map<String, String> parse(String arguments) {
        Map<String, String> given = new HashMap<>();
        for (String pair : arguments == null ? new String[0] : arguments.split(",")) {
            String[] parts = pair.split("=", 2);
            given.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        return given;
    }

    private static long number(Map<String, String> given, String name) {
        try {
            return Long.parseLong(given.getOrDefault(name, "nothing"));
        } catch (NumberFormatException problem) {
            throw new IllegalArgumentException(
                    name + " must be a whole number: got " + given.get(name) + " (-javaagent in vmargs)", problem);
        }
    }

    /** Not in the signal's own thread: the JVM has one for all signals. */
    private static void startEnd(Duration limit) {
        startDaemon(
                "cpukit-drain",
                () -> {
                    try {
                        Drain.run(gatehouse, limit);
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
