package cpukit;

import java.util.List;
import org.pytorch.serve.metrics.IMetric;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.util.ConfigManager;

/** Refusals in TorchServe's own counters of answers. */
final class Counters {
    private Counters() {}

    static void count(int status) {
        MetricCache cache = MetricCache.getInstance();
        IMetric metric = cache == null ? null : cache.getMetricFrontend(status < 500 ? "Requests4XX" : "Requests5XX");
        if (metric != null) {
            metric.addOrUpdate(List.of("Host", ConfigManager.getInstance().getHostName()), 1);
        }
    }
}
