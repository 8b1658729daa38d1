package cpukit;

import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.LinkedBlockingDeque;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.wlm.BatchAggregator;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.ModelVersionedRefs;
import org.pytorch.serve.wlm.WorkerThread;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers what was accepted and refuses what comes after, with TorchServe's own 503 for a full queue.
 *
 * <p>TorchServe's shutdown hook closes all connections at once (ServerGroups.shutdown), answered or not.
 */
final class Drain {
    private static final Logger logger = LoggerFactory.getLogger(Drain.class);
    private static final long POLL_MS = 25;
    /** A request is for an instant neither in the queue nor in a batch: only several looks in a row count. */
    private static final int IDLE_LOOKS = 8;
    /** The last answers are still on their way out; closing a connection throws them away (SO_LINGER 0). */
    private static final long FLUSH_MS = 500;

    private Drain() {}

    static void run(Duration limit) {
        try {
            List<Served> models = findModels();
            models.forEach(Served::refuse);
            logger.info("draining: {} requests wait or are in a batch", count(models));
            long end = System.nanoTime() + limit.toNanos();
            int idle = 0;
            while (idle < IDLE_LOOKS && System.nanoTime() < end) {
                Thread.sleep(POLL_MS);
                idle = count(models) == 0 ? idle + 1 : 0;
            }
            Thread.sleep(FLUSH_MS);
            logger.info("drained: {} requests left unanswered", count(models));
        } catch (ReflectiveOperationException | InterruptedException problem) {
            logger.error("cannot drain: requests may be cut off", problem);
        }
    }

    private static int count(List<Served> models) {
        return models.stream().mapToInt(Served::count).sum();
    }

    private static List<Served> findModels() throws ReflectiveOperationException {
        List<Served> found = new ArrayList<>();
        ModelManager manager = ModelManager.getInstance();
        if (manager == null) { // the signal came before TorchServe had any model
            return found;
        }
        for (Map.Entry<String, ModelVersionedRefs> entry : manager.getAllModels()) {
            for (Map.Entry<String, Model> version : entry.getValue().getAllVersions()) {
                found.add(new Served(manager, version.getValue()));
            }
        }
        return found;
    }

    /** A queue that gives but does not take: Model.addJob calls `offer`, and answers 503 when it is false. */
    private static final class ClosedQueue extends LinkedBlockingDeque<Job> {
        private static final long serialVersionUID = 1L;

        @Override
        public boolean offer(Job job) {
            return false;
        }
    }

    /** One version of a model, with its queue and its workers' batches. */
    private static final class Served {
        private final Model model;
        private final ConcurrentMap<String, LinkedBlockingDeque<Job>> queues;
        private final LinkedBlockingDeque<Job> open;
        private final ClosedQueue closed = new ClosedQueue();
        private final List<Map<?, ?>> batches = new ArrayList<>();

        @SuppressWarnings("unchecked")
        Served(ModelManager manager, Model model) throws ReflectiveOperationException {
            this.model = model;
            queues = (ConcurrentMap<String, LinkedBlockingDeque<Job>>) read(Model.class, "jobsDb", model);
            open = queues.get(Model.DEFAULT_DATA_QUEUE);
            for (WorkerThread worker : manager.getWorkers(model.getModelVersionName())) {
                Object aggregator = read(WorkerThread.class, "aggregator", worker);
                batches.add((Map<?, ?>) read(BatchAggregator.class, "jobs", aggregator));
            }
        }

        void refuse() {
            queues.put(Model.DEFAULT_DATA_QUEUE, closed);
            moveOver();
        }

        int count() {
            moveOver();
            return open.size() + closed.size() + batches.stream().mapToInt(Map::size).sum();
        }

        /** Workers look into the new queue from their next batch on; a request may still slip into the old one. */
        private void moveOver() {
            List<Job> waiting = new ArrayList<>();
            open.drainTo(waiting);
            waiting.forEach(closed::offerLast);
        }

        @Override
        public String toString() {
            return model.getModelName();
        }

        private static Object read(Class<?> owner, String name, Object of) throws ReflectiveOperationException {
            Field field = owner.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(of);
        }
    }
}
