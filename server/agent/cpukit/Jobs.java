package cpukit;

import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import java.lang.reflect.Field;
import java.util.Map;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.LinkedBlockingDeque;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.ModelVersionedRefs;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** TorchServe's queues, from which it takes nothing back by itself. */
final class Jobs {
    private static final Logger logger = LoggerFactory.getLogger(Jobs.class);

    private Jobs() {}

    /** Take what a client that has gone still has waiting out: it would hold memory and be computed for nobody. */
    static void forget(Channel channel) {
        ModelManager manager = ModelManager.getInstance();
        if (manager == null) {
            return;
        }
        for (Map.Entry<String, ModelVersionedRefs> entry : manager.getAllModels()) {
            for (Map.Entry<String, Model> version : entry.getValue().getAllVersions()) {
                queue(version.getValue()).removeIf(job -> isOf(job, channel));
            }
        }
    }

    private static boolean isOf(Job job, Channel channel) {
        return job instanceof RestJob
                && ((ChannelHandlerContext) read(RestJob.class, "ctx", job)).channel() == channel;
    }

    @SuppressWarnings("unchecked")
    private static LinkedBlockingDeque<Job> queue(Model model) {
        return ((ConcurrentMap<String, LinkedBlockingDeque<Job>>) read(Model.class, "jobsDb", model))
                .get(Model.DEFAULT_DATA_QUEUE);
    }

    private static Object read(Class<?> owner, String name, Object of) {
        try {
            Field field = owner.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(of);
        } catch (ReflectiveOperationException problem) {
            logger.error("this is not TorchServe 0.12: {}.{}", owner.getName(), name);
            throw new IllegalStateException(problem);
        }
    }
}
