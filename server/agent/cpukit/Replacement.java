package cpukit;

import java.io.IOException;
import java.io.InputStream;
import java.lang.instrument.ClassFileTransformer;
import java.security.ProtectionDomain;
import java.util.Set;

/** Puts classes of ours in the place of TorchServe's: nothing else lets a handler into its pipeline. */
final class Replacement implements ClassFileTransformer {
    private static final Set<String> REPLACED =
            Set.of("org/pytorch/serve/ServerInitializer", "org/pytorch/serve/grpcimpl/GRPCInterceptor");

    @Override
    public byte[] transform(
            ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] original) {
        if (name == null || !REPLACED.contains(name)) {
            return null; // as it is
        }
        try (InputStream file = Agent.class.getResourceAsStream("/replaced/" + name + ".class")) {
            return file.readAllBytes();
        } catch (IOException | NullPointerException problem) {
            // An exception here would be swallowed, and the server would stand open.
            System.err.println("Error: the agent's " + name + " cannot be read: " + problem); // NOPMD
            Runtime.getRuntime().halt(1);
            return null;
        }
    }
}
